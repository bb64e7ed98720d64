#!/usr/bin/env bash
# A real SLURM of one node, this machine, with all its state in one folder.
#
#   cluster.sh start FOLDER   starts munge, the controller and the node; FOLDER/environment is to be sourced
#   cluster.sh stop FOLDER    ends them
#
# Needs slurm-wlm and munge (Debian), and root: munge and slurmd insist on it. While it runs,
# /etc/slurm/slurm.conf is a link to its configuration, since jobs are started without SLURM_CONF; a
# machine that has a SLURM already is left alone.
set -euo pipefail

SYSTEM_CONF=/etc/slurm/slurm.conf
command=${1:?start or stop}
mkdir -p "${2:?a folder for its state}"
folder=$(cd "$2" && pwd)

stop() {
    for name in slurmd slurmctld munged; do
        [ -f "$folder/$name.pid" ] && kill "$(cat "$folder/$name.pid")" 2>/dev/null || true
    done
    [ "$(readlink "$SYSTEM_CONF" 2>/dev/null)" != "$folder/slurm.conf" ] || rm "$SYSTEM_CONF"
}

start() {
    for program in munged slurmctld slurmd sbatch; do
        command -v "$program" >/dev/null || { echo "error: $program is missing; install slurm-wlm and munge" >&2; exit 1; }
    done
    [ "$(id -u)" = 0 ] || { echo "error: munged and slurmd must be started as root" >&2; exit 1; }
    # a link that leads nowhere is of an earlier one that was killed
    if [ -e "$SYSTEM_CONF" ]; then
        echo "error: $SYSTEM_CONF exists, this machine has a SLURM already" >&2
        exit 1
    fi
    local cores memory host
    cores=$(nproc) host=$(hostname -s)
    memory=$(awk '/MemTotal/ {print int($2 / 1024) - 512}' /proc/meminfo)
    mkdir -p "$folder/state" "$folder/spool"

    # munged refuses a key or a socket that others could have put there
    chmod 755 "$folder"
    [ -f "$folder/munge.key" ] || { (umask 077; head -c 1024 /dev/urandom >"$folder/munge.key"); }
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
        --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"

    cat >"$folder/slurm.conf" <<END
ClusterName=one-node
SlurmctldHost=$host
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
SlurmctldPort=16817
SlurmdPort=16818
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2
MpiDefault=none
ReturnToService=2
MinJobAge=3600
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/jobs.txt
NodeName=$host CPUs=$cores RealMemory=$memory State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP
END
    touch "$folder/jobs.txt"
    # without cgroups of its own; nothing here is confined
    echo "CgroupPlugin=autodetect" >"$folder/cgroup.conf"
    printf 'export SLURM_CONF=%q\n' "$folder/slurm.conf" >"$folder/environment"
    mkdir -p "$(dirname "$SYSTEM_CONF")"
    ln -sf "$folder/slurm.conf" "$SYSTEM_CONF"
    export SLURM_CONF="$folder/slurm.conf"
    slurmctld
    slurmd
    for _ in $(seq 60); do
        [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && { echo "one node with $cores cores: $folder"; return; }
        sleep 0.5
    done
    echo "error: the node did not come up, see $folder/slurmctld.log and slurmd.log" >&2
    tail -n 5 "$folder"/slurmctld.log "$folder"/slurmd.log >&2
    stop
    exit 1
}

case $command in
    start) start ;;
    stop) stop ;;
    *) echo "error: start or stop" >&2; exit 2 ;;
esac
