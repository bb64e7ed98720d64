// what the flash attention of the CPU backend costs, by what the cells hold: one kernel, alone, in random order
//
// usage: attention_content n_cells n_tokens n_head n_head_kv head_dim n_threads n_rounds seed
//
// prints one line a round and content: content, nanoseconds

#include "ggml.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

enum noise_type {
    NOISE_NONE,
    NOISE_FULL, // N(0, 1)
    NOISE_TINY, // N(0, 1)/1000
    NOISE_FEW,  // N(0, 1), but only N_FEW different numbers
};

static constexpr int N_FEW = 16;

struct content {
    std::string name;

    // factor of the direction that all tokens look into, for cell i of n
    float (*row)(int64_t i, int64_t n);

    noise_type noise_k;
    noise_type noise_v;
};

static float row_none   (int64_t,   int64_t)   { return 0.0f; }
static float row_same   (int64_t,   int64_t)   { return 1.0f; }
static float row_rising (int64_t i, int64_t n) { return (float) i/n; }
static float row_falling(int64_t i, int64_t n) { return 1.0f - (float) i/n; }

// what it means for the scores of one token with all cells, and for the numbers in K
static const std::vector<content> contents = {
    { "random",        row_none,    NOISE_FULL, NOISE_FULL }, // differ, as with real rows
    { "zero",          row_none,    NOISE_NONE, NOISE_FULL }, // all scores 0, one number
    { "same row",      row_same,    NOISE_NONE, NOISE_FULL }, // all scores equal, as many numbers as a row has
    { "16 numbers",    row_none,    NOISE_FEW,  NOISE_FULL }, // scores differ as with "random", few numbers
    { "nearly equal",  row_none,    NOISE_TINY, NOISE_FULL }, // scores differ in the last digits, many numbers
    { "rising",        row_rising,  NOISE_NONE, NOISE_FULL }, // a new maximum in every cell, many numbers
    { "falling",       row_falling, NOISE_NONE, NOISE_FULL }, // the first score stays the maximum, many numbers
    { "V zero",        row_none,    NOISE_FULL, NOISE_NONE },
    { "V 16 numbers",  row_none,    NOISE_FULL, NOISE_FEW  },
};

int main(int argc, char ** argv) {
    if (argc != 9) {
        fprintf(stderr, "usage: %s n_cells n_tokens n_head n_head_kv head_dim n_threads n_rounds seed\n", argv[0]);
        return 1;
    }

    const int64_t n_cells   = atoll(argv[1]);
    const int64_t n_tokens  = atoll(argv[2]);
    const int64_t n_head    = atoll(argv[3]);
    const int64_t n_head_kv = atoll(argv[4]);
    const int64_t head_dim  = atoll(argv[5]);
    const int     n_threads = atoi (argv[6]);
    const int     n_rounds  = atoi (argv[7]);

    std::mt19937 rng(atoi(argv[8]));
    std::normal_distribution<float> normal;

    const size_t size_kv = n_cells*n_head_kv*head_dim*sizeof(ggml_fp16_t);

    ggml_init_params params = { 2*size_kv + 64*n_tokens*n_head*head_dim + 4*n_cells*n_tokens + (1 << 20), nullptr, false };
    ggml_context * ctx = ggml_init(params);

    ggml_tensor * q    = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, head_dim, n_tokens, n_head);
    ggml_tensor * k    = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, head_dim, n_cells,  n_head_kv);
    ggml_tensor * v    = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, head_dim, n_cells,  n_head_kv);
    ggml_tensor * mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, n_cells,  n_tokens);

    // one direction that all tokens look into, so that "rising" and "falling" mean it for every token
    std::vector<float> direction(head_dim);
    for (auto & x : direction) {
        x = normal(rng);
    }

    auto * q_data = (float *) q->data;
    for (int64_t i = 0; i < n_tokens*n_head; ++i) {
        for (int64_t j = 0; j < head_dim; ++j) {
            q_data[i*head_dim + j] = 0.3f*normal(rng) + direction[j];
        }
    }

    memset(mask->data, 0, ggml_nbytes(mask));

    float few[N_FEW];
    for (auto & x : few) {
        x = normal(rng);
    }

    const size_t n_el = n_cells*n_head_kv*head_dim;

    // [noise_type][n_el]
    std::vector<std::vector<float>> noise(4, std::vector<float>(n_el, 0.0f));
    for (size_t i = 0; i < n_el; ++i) {
        noise[NOISE_FULL][i] = normal(rng);
        noise[NOISE_TINY][i] = noise[NOISE_FULL][i]/1000;
        noise[NOISE_FEW ][i] = few[rng()%N_FEW];
    }

    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, ggml_flash_attn_ext(ctx, q, k, v, mask, 1.0f/std::sqrt((float) head_dim), 0.0f, 0.0f));

    ggml_cplan plan = ggml_graph_plan(graph, n_threads, nullptr);
    std::vector<uint8_t> work(plan.work_size);
    plan.work_data = work.data();

    std::vector<size_t> order(contents.size());
    for (size_t i = 0; i < order.size(); ++i) {
        order[i] = i;
    }

    for (int round = -1; round < n_rounds; ++round) {
        std::shuffle(order.begin(), order.end(), rng);

        for (const auto i : order) {
            const auto & c = contents[i];

            auto * k_data = (ggml_fp16_t *) k->data;
            auto * v_data = (ggml_fp16_t *) v->data;

            // every content is written by the same stores, so that all of them leave the cache alike
            for (int64_t h = 0; h < n_head_kv; ++h) {
                for (int64_t cell = 0; cell < n_cells; ++cell) {
                    const int64_t offs   = (h*n_cells + cell)*head_dim;
                    const float   factor = c.row(cell, n_cells);

                    for (int64_t j = 0; j < head_dim; ++j) {
                        k_data[offs + j] = ggml_fp32_to_fp16(factor*direction[j] + noise[c.noise_k][offs + j]);
                        v_data[offs + j] = ggml_fp32_to_fp16(noise[c.noise_v][offs + j]);
                    }
                }
            }

            const auto t_start = std::chrono::steady_clock::now();

            if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) {
                fprintf(stderr, "the graph was not computed\n");
                return 1;
            }

            const auto t_end = std::chrono::steady_clock::now();

            // the first round warms up
            if (round >= 0) {
                printf("%s\t%lld\n", c.name.c_str(), (long long) std::chrono::duration_cast<std::chrono::nanoseconds>(t_end - t_start).count());
            }
        }
    }

    ggml_free(ctx);

    return 0;
}
