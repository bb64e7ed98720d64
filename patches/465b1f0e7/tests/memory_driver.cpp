// Drives the memory of a context with one command a line, and answers each with one line of JSON:
// whether it was accepted, and what every sequence holds afterwards. A test generates the commands
// and compares the answers with a model of the contract.
//
//   memory_driver MODEL N_CTX N_SEQ UNIFIED
//
//   decode SEQ POS N         N tokens of text at positions POS, POS + 1, ...
//   image SEQ POS NX NY      NX*NY embeddings that share position POS (M-RoPE only)
//   rm SEQ P0 P1             llama_memory_seq_rm, -1 for an open end
//   cp SRC DST               llama_memory_seq_cp of everything
//   keep SEQ
//   add SEQ DELTA            llama_memory_seq_add of everything
//   fake SEQ N FILL          llama_memory_seq_fake_prefix, FILL: zero, random or tile
//   dry SEQ N FILL           the same with dry_run
//   tile SEQ                 llama_memory_fake_tile_set
//   save SEQ NAME            keep the state of a sequence
//   load SEQ NAME            replace the state of a sequence by a kept one
//   clear
//   logits SEQ POS           decode one token and answer with its first logits

#include "llama.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

struct driver {
    llama_model   * model;
    llama_context * ctx;
    llama_memory_t  mem;

    int32_t n_seq;
    int32_t n_pos_per_embd;

    std::map<std::string, std::vector<uint8_t>> states;

    std::string logits;

    // embd: image instead of text
    bool decode(llama_seq_id seq, llama_pos pos, int32_t n, bool want_logits) {
        llama_batch batch = llama_batch_init(n, 0, 1);
        for (int32_t i = 0; i < n; ++i) {
            batch.token   [i]    = 3 + (7*(pos + i) + 13*seq) % 50;
            batch.pos     [i]    = pos + i;
            batch.n_seq_id[i]    = 1;
            batch.seq_id  [i][0] = seq;
            batch.logits  [i]    = want_logits && i + 1 == n;
        }
        batch.n_tokens = n;

        const bool ok = llama_decode(ctx, batch) == 0;
        llama_synchronize(ctx);
        llama_batch_free(batch);

        return ok;
    }

    bool image(llama_seq_id seq, llama_pos pos, int32_t nx, int32_t ny) {
        const int32_t n      = nx*ny;
        const int32_t n_embd = llama_model_n_embd_inp(model);

        std::vector<float>          embd(size_t(n)*n_embd, 0.125f);
        std::vector<llama_pos>      poss(size_t(n)*n_pos_per_embd, 0);
        std::vector<int32_t>        n_seq_id(n, 1);
        std::vector<llama_seq_id>   seq_id(1, seq);
        std::vector<llama_seq_id *> seq_ids(n, seq_id.data());
        std::vector<int8_t>         output(n, 0);

        for (int32_t i = 0; i < n; ++i) {
            poss[i      ] = pos;
            poss[i + n  ] = pos + i/nx;
            poss[i + n*2] = pos + i%nx;
        }

        llama_batch batch = { n, nullptr, embd.data(), poss.data(), n_seq_id.data(), seq_ids.data(), output.data() };

        const bool ok = llama_decode(ctx, batch) == 0;
        llama_synchronize(ctx);

        return ok;
    }

    bool fake(llama_seq_id seq, llama_pos n, const std::string & fill, bool dry_run) {
        auto params = llama_fake_prefix_default_params();
        params.fill = fill == "zero" ? LLAMA_FAKE_FILL_ZERO : fill == "random" ? LLAMA_FAKE_FILL_RANDOM : LLAMA_FAKE_FILL_TILE;
        params.dry_run = dry_run;

        return llama_memory_seq_fake_prefix(mem, seq, n, params, nullptr);
    }

    bool run(const std::string & line) {
        std::istringstream in(line);

        std::string op;
        std::string name;
        int32_t a = 0;
        int32_t b = 0;
        int32_t c = 0;
        int32_t d = 0;

        in >> op;
        logits.clear();

        if (op == "decode") { in >> a >> b >> c;      return decode(a, b, c, false); }
        if (op == "image")  { in >> a >> b >> c >> d; return image(a, b, c, d); }
        if (op == "rm")     { in >> a >> b >> c;      return llama_memory_seq_rm(mem, a, b, c); }
        if (op == "cp")     { in >> a >> b;           llama_memory_seq_cp(mem, a, b, -1, -1); return true; }
        if (op == "keep")   { in >> a;                llama_memory_seq_keep(mem, a); return true; }
        if (op == "add")    { in >> a >> b;           llama_memory_seq_add(mem, a, -1, -1, b); return true; }
        if (op == "fake")   { in >> a >> b >> name;   return fake(a, b, name, false); }
        if (op == "dry")    { in >> a >> b >> name;   return fake(a, b, name, true); }
        if (op == "tile")   { in >> a;                return llama_memory_fake_tile_set(mem, a); }
        if (op == "clear")  {                         llama_memory_clear(mem, false); return true; }
        if (op == "save") {
            in >> a >> name;
            auto & state = states[name];
            state.resize(llama_state_seq_get_size_ext(ctx, a, 0));
            return llama_state_seq_get_data_ext(ctx, state.data(), state.size(), a, 0) == state.size();
        }
        if (op == "load") {
            in >> a >> name;
            const auto & state = states.at(name);
            return llama_state_seq_set_data_ext(ctx, state.data(), state.size(), a, 0) == state.size();
        }
        if (op == "logits") {
            in >> a >> b;
            if (!decode(a, b, 1, true)) {
                return false;
            }
            const float * values = llama_get_logits_ith(ctx, -1);
            for (int i = 0; i < 8; ++i) {
                char buf[32];
                snprintf(buf, sizeof(buf), "%s%.9g", i ? "," : "", values[i]);
                logits += buf;
            }
            return true;
        }

        fprintf(stderr, "unknown command: %s\n", line.c_str());
        exit(2);
    }

    void answer(bool ok) {
        printf("{\"ok\":%s,\"logits\":[%s],\"seqs\":[", ok ? "true" : "false", logits.c_str());
        for (llama_seq_id s = 0; s < n_seq; ++s) {
            llama_memory_seq_run_info  run  = {};
            llama_memory_seq_stat_info stat = {};

            const bool known = llama_memory_seq_run(mem, s, &run) && llama_memory_seq_stat(mem, s, &stat);

            printf("%s{\"known\":%s,\"first\":%d,\"last\":%d,\"end\":%d,\"cells\":%d,\"hole\":%d,\"orphaned\":%d,\"attn\":%d,\"recr\":%d,\"n_kv\":%u}",
                    s ? "," : "", known ? "true" : "false", run.pos_first, run.pos_last, run.pos_end, run.n_cells,
                    run.pos_hole, run.n_orphaned, stat.pos_max_attn, stat.pos_max_recr, stat.n_kv);
        }
        printf("]}\n");
        fflush(stdout);
    }
};

int main(int argc, char ** argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s MODEL N_CTX N_SEQ UNIFIED\n", argv[0]);
        return 2;
    }

    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) {
            fputs(text, stderr);
        }
    }, nullptr);

    llama_backend_init();

    driver drv;

    drv.model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!drv.model) {
        return 1;
    }

    auto cparams = llama_context_default_params();
    cparams.n_ctx           = atoi(argv[2]);
    cparams.n_seq_max       = atoi(argv[3]);
    cparams.kv_unified      = atoi(argv[4]) != 0;
    cparams.n_batch         = 512;
    cparams.n_ubatch        = 64;
    cparams.n_threads       = 1;
    cparams.n_threads_batch = 1;
    cparams.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;

    drv.ctx = llama_init_from_model(drv.model, cparams);
    if (!drv.ctx) {
        return 1;
    }

    drv.mem   = llama_get_memory(drv.ctx);
    drv.n_seq = cparams.n_seq_max;

    const auto rope = llama_model_rope_type(drv.model);
    drv.n_pos_per_embd = rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE ? 4 : 1;

    printf("{\"memory\":\"%s\",\"n_ctx_seq\":%u,\"mrope\":%s}\n",
            llama_get_resolved(drv.ctx).memory_type, llama_n_ctx_seq(drv.ctx), drv.n_pos_per_embd == 4 ? "true" : "false");
    fflush(stdout);

    for (std::string line; std::getline(std::cin, line);) {
        if (!line.empty()) {
            drv.answer(drv.run(line));
        }
    }

    llama_free(drv.ctx);
    llama_model_free(drv.model);
    llama_backend_free();

    return 0;
}
