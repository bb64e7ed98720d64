#!/bin/sh
# What must be there before anything is installed; one clear line for what is not.
set -u

fail() {
    echo "error: $1" >&2
    exit 1
}

PYTHON=${PYTHON:-python3}
command -v "$PYTHON" >/dev/null 2>&1 || fail "$PYTHON is not installed; install Python 3.11 or newer, or say make PYTHON=/path/to/python"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$PYTHON" --version 2>&1) is too old; Python 3.11 or newer is needed, say make PYTHON=/path/to/python"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || fail "$PYTHON has no venv module; install it (Debian: python3-venv)"
command -v git >/dev/null 2>&1 || fail "git is not installed"
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null 2>&1 || fail "no C++ compiler: $compiler is not installed (Debian: g++)"
echo 'int main() { return 0; }' | "$compiler" -x c++ -fsanitize=address,undefined -o /dev/null - 2>/dev/null ||
    fail "$compiler cannot link with its sanitizers; the checked build needs them (Debian: they come with g++)"
exit 0
