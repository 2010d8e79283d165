// Decoding attention against softmax in double precision.
#pragma once
#include "check.hpp"

enum CacheType { CACHE_F16, CACHE_BF16, CACHE_Q8_0 };
static const char* CACHE_NAMES[] = {"f16", "bf16", "q8_0"};

struct AttendCase {
    int type;
    uint32_t dim, heads, kv_heads, splits;
    std::vector<int> positions;  // of the rows, each of its own sequence
    uint32_t window = 0;
    float softcap = 0;
    bool sinks = false, fused = false, adjacent = false;
    bool prompt = false;  // by the flash kernel: all rows of one sequence, at successive positions
};

// A cache on the host, [block][k: head, 32, dim | v], and what its elements stand for.
struct HostCache {
    int type;
    uint32_t dim, kv_heads;
    std::vector<uint8_t> bytes;
    size_t head_bytes() const { return type == CACHE_Q8_0 ? dim * 34 : dim * 64; }
    size_t block_bytes() const { return 2 * kv_heads * head_bytes(); }
    uint8_t* head(uint32_t block, bool values, uint32_t h) {
        return bytes.data() + block * block_bytes() + (values ? kv_heads : 0) * head_bytes() + h * head_bytes();
    }
    void put(uint8_t* head, uint32_t at, const float* x) {
        for (uint32_t d = 0; d < dim; d++) {
            uint16_t v;
            if (type == CACHE_F16) v = f16_of(x[d]);
            else if (type == CACHE_BF16) v = bf16_of(x[d]);
            else {
                float top = 0;
                for (uint32_t i = d / 32 * 32; i < d / 32 * 32 + 32; i++) top = std::max(top, std::fabs(x[i]));
                const float scale = top / 127;
                head[at * dim + d] = static_cast<uint8_t>(static_cast<int>(std::round(scale > 0 ? x[d] / scale : 0)));
                v = f16_of(scale);
                memcpy(head + 32 * dim + (at * (dim / 32) + d / 32) * 2, &v, 2);
                continue;
            }
            memcpy(head + (at * dim + d) * 2, &v, 2);
        }
    }
    double get(const uint8_t* head, uint32_t at, uint32_t d) const {
        uint16_t v;
        if (type == CACHE_Q8_0) {
            memcpy(&v, head + 32 * dim + (at * (dim / 32) + d / 32) * 2, 2);
            return static_cast<double>(f16_value(v)) * static_cast<int8_t>(head[at * dim + d]);
        }
        memcpy(&v, head + (at * dim + d) * 2, 2);
        return type == CACHE_F16 ? f16_value(v) : bf16_value(v);
    }
};

// Whether there are few parts, whose blocks are a cluster, many parts, or two blocks for a multiprocessor.
enum AttendWay { SHORT, LONG, PAIRED };
inline std::string attend_name(const std::string& cache, uint32_t dim, AttendWay way) {
    return "attend_" + cache + "_" + std::to_string(dim) + (way == SHORT ? "_short" : way == LONG ? "_long" : "_paired");
}
inline uint32_t attend_warps(uint32_t dim, AttendWay way) { return way == PAIRED ? 4 : way == SHORT && dim <= 128 ? 12 : 8; }
inline size_t attend_shared(uint32_t dim, uint32_t warps) { return 4 * (12 * dim + 8 * warps * (dim + 8) + 1200); }

// `way` is of no matter to prompts.
inline void check_attend_by(Gpu& gpu, Report& report, const AttendCase& c, AttendWay way) {
    const uint32_t warps = attend_warps(c.dim, way), cluster = way == SHORT ? c.splits : 1;
    const uint32_t rows = c.positions.size(), share = c.heads / c.kv_heads, groups = c.kv_heads * up(share, 8);
    const uint32_t max_blocks = *std::max_element(c.positions.begin(), c.positions.end()) / 32 + 1;
    HostCache cache{c.type, c.dim, c.kv_heads, {}};
    // Blocks in any order; what is not written is NaN.
    std::vector<uint32_t> table(rows * max_blocks), order(rows * max_blocks), first(rows, 0), sequences(rows);
    for (uint32_t i = 0; i < order.size(); i++) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    cache.bytes.assign(order.size() * cache.block_bytes(), 0xff);
    const auto data = random_floats(static_cast<size_t>(1) << 20, 80);
    size_t used = 0;
    auto next = [&](uint32_t n) {
        if (used + n > data.size()) used = 0;
        used += n;
        return data.data() + used - n;
    };
    for (uint32_t r = 0; r < rows; r++) {
        sequences[r] = c.prompt ? 0 : r;
        // A window lets early blocks go.
        if (c.window && !c.prompt && c.positions[r] >= static_cast<int>(c.window)) first[r] = (c.positions[r] + 1 - c.window) / 32;
        for (uint32_t b = 0; b + first[r] < max_blocks; b++) table[r * max_blocks + b] = order[r * max_blocks + b];
    }
    auto block = [&](uint32_t r, uint32_t p) { return table[sequences[r] * max_blocks + p / 32 - first[r]]; };
    for (uint32_t r = 0; r < (c.prompt ? 1 : rows); r++) {
        const int last = c.prompt ? c.positions.back() : c.positions[r] - (c.fused ? 1 : 0);
        for (int p = first[r] * 32; p <= last; p++) {
            for (uint32_t h = 0; h < c.kv_heads; h++) {
                cache.put(cache.head(block(r, p), false, h), p % 32, next(c.dim));
                cache.put(cache.head(block(r, p), true, h), p % 32, next(c.dim));
            }
        }
    }
    const uint32_t q_cols = c.heads * c.dim, kv_cols = c.kv_heads * c.dim, pairs = c.dim / 2;
    const auto q = random_floats(rows * q_cols, 81), q2 = random_floats(q.size(), 82), k = random_floats(rows * kv_cols, 83);
    const auto k2 = random_floats(k.size(), 84), v = random_floats(k.size(), 85), v2 = random_floats(k.size(), 86);
    const auto qn = random_floats(c.dim, 87), kn = random_floats(c.dim, 88), sinks = random_floats(c.heads, 89);
    std::vector<float> rope(rows * c.dim);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < pairs; i++) {
            const double angle = c.positions[r] * std::pow(10000.0, -2.0 * i / c.dim);
            rope[(r * pairs + i) * 2] = static_cast<float>(std::cos(angle));
            rope[(r * pairs + i) * 2 + 1] = static_cast<float>(std::sin(angle));
        }
    }
    Buffer<uint8_t> d_cache(cache.bytes);
    Buffer<float> dq(q), dq2(q2), dk(k), dk2(k2), dv(v), dv2(v2), dqn(qn), dkn(kn), drope(rope), dsinks(sinks), out(q.size());
    Buffer<float> partial(static_cast<size_t>(rows) * groups * c.splits * 8 * (c.dim + 8));
    Buffer<uint32_t> counters(rows * groups), tokens(std::vector<uint32_t>{rows}), dseq(sequences), dfirst(first), dtable(table);
    counters.zero();
    Buffer<int32_t> dpos(std::vector<int32_t>(c.positions.begin(), c.positions.end()));
    AttendArgs a{};
    a.q = dq.p, a.sinks = c.sinks ? dsinks.p : nullptr, a.cache = d_cache.p, a.out = out.p, a.partial = partial.p;
    a.counters = counters.p, a.tokens = tokens.p, a.positions = dpos.p, a.sequences = dseq.p, a.first = dfirst.p;
    a.blocks = dtable.p, a.block_bytes = cache.block_bytes(), a.v_offset = cache.block_bytes() / 2;
    a.scale = 1 / std::sqrt(static_cast<float>(c.dim)), a.softcap = c.softcap, a.eps = 1e-6f;
    a.heads = c.heads, a.kv_heads = c.kv_heads, a.max_blocks = max_blocks, a.window = c.window, a.pairs = pairs, a.adjacent = c.adjacent;
    if (c.fused) {
        a.q_tail = dq2.p, a.k = dk.p, a.k_tail = dk2.p, a.v = dv.p, a.v_tail = dv2.p, a.tails = 1;
        a.q_norm = dqn.p, a.k_norm = dkn.p, a.rope = drope.p;
    }
    const std::string kernel = c.prompt ? std::string("flash_") + CACHE_NAMES[c.type] + "_" + std::to_string(c.dim) : attend_name(CACHE_NAMES[c.type], c.dim, way);
    std::vector<uint32_t> tiles;
    for (uint32_t r = 0; r < rows; r += 64) tiles.push_back(r), tiles.push_back(std::min(64u, rows - r));
    Buffer<uint32_t> dtiles(tiles), tile_count(std::vector<uint32_t>{static_cast<uint32_t>(tiles.size() / 2)});
    if (c.prompt) {
        FlashArgs f{dq.p, a.sinks, d_cache.p, out.p, dtiles.p, tile_count.p, dpos.p, dseq.p, dfirst.p, dtable.p, a.block_bytes,
                    a.v_offset, a.scale, a.softcap, a.heads, a.kv_heads, a.max_blocks, a.window};
        gpu.launch(gpu.kernel("flash", kernel), dim3(tiles.size() / 2 + 1, c.heads), 128, 2 * c.dim * 320, f);
    } else {
        gpu.launch(gpu.kernel("attend", kernel), dim3(c.splits, groups, rows + 1), 32 * warps, attend_shared(c.dim, warps), a, true, cluster);
    }
    gpu.sync();
    const auto got = out.read();
    const auto counts = counters.read();
    Error e;
    auto head = [&](const std::vector<float>& x, const std::vector<float>& tail, const std::vector<float>& norm, size_t at, uint32_t r) {
        std::vector<double> h(c.dim);
        for (uint32_t d = 0; d < c.dim; d++) h[d] = x[at + d];
        if (!c.fused) return h;
        for (uint32_t d = 0; d < c.dim; d++) h[d] += tail[at + d];
        h = normalised(h, norm, 1e-6);
        for (uint32_t i = 0; i < pairs; i++) {
            const double cosine = rope[(r * pairs + i) * 2], sine = rope[(r * pairs + i) * 2 + 1];
            const uint32_t one = c.adjacent ? 2 * i : i, two = c.adjacent ? 2 * i + 1 : i + pairs;
            const double x1 = h[one], x2 = h[two];
            h[one] = x1 * cosine - x2 * sine, h[two] = x1 * sine + x2 * cosine;
        }
        return h;
    };
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t h = 0; h < c.kv_heads && c.fused; h++) {
            const auto kd = head(k, k2, kn, r * kv_cols + h * c.dim, r);
            const std::vector<float> kf(kd.begin(), kd.end());
            std::vector<float> vf(c.dim);
            for (uint32_t d = 0; d < c.dim; d++) vf[d] = v[r * kv_cols + h * c.dim + d] + v2[r * kv_cols + h * c.dim + d];
            cache.put(cache.head(block(r, c.positions[r]), false, h), c.positions[r] % 32, kf.data());
            cache.put(cache.head(block(r, c.positions[r]), true, h), c.positions[r] % 32, vf.data());
        }
        for (uint32_t h = 0; h < c.heads; h++) {
            const auto query = head(q, q2, qn, r * q_cols + h * c.dim, r);
            const int from = c.window ? std::max(0, c.positions[r] + 1 - static_cast<int>(c.window)) : 0;
            std::vector<double> scores, value(c.dim, 0);
            double top = c.sinks ? sinks[h] : -1e300;
            for (int p = from; p <= c.positions[r]; p++) {
                const uint8_t* key = cache.head(block(r, p), false, h / share);
                double s = 0;
                for (uint32_t d = 0; d < c.dim; d++) s += query[d] * cache.get(key, p % 32, d);
                s *= a.scale;
                if (c.softcap > 0) s = c.softcap * std::tanh(s / c.softcap);
                scores.push_back(s);
                top = std::max(top, s);
            }
            double sum = c.sinks ? std::exp(sinks[h] - top) : 0;
            for (int p = from; p <= c.positions[r]; p++) {
                const double weight = std::exp(scores[p - from] - top);
                sum += weight;
                const uint8_t* x = cache.head(block(r, p), true, h / share);
                for (uint32_t d = 0; d < c.dim; d++) value[d] += weight * cache.get(x, p % 32, d);
            }
            for (uint32_t d = 0; d < c.dim; d++) e.add(got[(r * c.heads + h) * c.dim + d], value[d] / sum);
        }
    }
    for (uint32_t n : counts) e.add(n, 0);
    // The same as the image that products of several rows read.
    for (bool bf16 : {false, true}) {
        if (c.prompt || q_cols % 256) continue;
        const uint32_t image_groups = up(rows, 8) + 1;
        Buffer<uint8_t> image(static_cast<size_t>(q_cols) / 64 * image_groups * 1024);
        a.image = image.p, a.groups = image_groups, a.image_kind = bf16 ? IMAGE_BF16 : IMAGE_F16;
        gpu.launch(gpu.kernel("attend", kernel), dim3(c.splits, groups, rows + 1), 32 * warps, attend_shared(c.dim, warps), a, true, cluster);
        gpu.sync();
        const auto bytes = image.read();
        Error f;
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t i = 0; i < q_cols; i++) {
                const uint32_t chunk = i % 64 / 2;
                uint16_t bits;
                memcpy(&bits, &bytes[((i / 256 * 4 + chunk / 8) * image_groups + r / 8) * 1024 + r % 8 * 128 + (chunk ^ r) % 8 * 16 + i % 256 / 64 * 4 + i % 2 * 2], 2);
                f.add(bf16 ? bf16_value(bits) : f16_value(bits), got[r * q_cols + i]);
            }
        }
        report.line(kernel + " heads " + std::to_string(c.heads) + (bf16 ? ", image of bf16" : ", image of f16"), f.value(), bf16 ? 3e-3 : 4e-4);
    }
    // And as the one that products in whole numbers read.
    if (!c.prompt && q_cols % 256 == 0 && rows <= 8) {
        Buffer<uint8_t> image(q_cols / 256 * FEW_BYTES);
        image.poison();
        a.image = image.p, a.image_kind = IMAGE_INT8;
        gpu.launch(gpu.kernel("attend", kernel), dim3(c.splits, groups, rows + 1), 32 * warps, attend_shared(c.dim, warps), a, true, cluster);
        gpu.sync();
        const auto bytes = image.read();
        Error f;
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t i = 0; i < q_cols; i++) f.add(few_value(bytes, r, i), got[r * q_cols + i]);
        }
        const std::string name = kernel + " heads " + std::to_string(c.heads) + ", image of int8";
        report.line(name, f.value(), 1e-2), report.line(name + ", sums", few_sums(bytes, rows, q_cols), 1e-5);
    }
    report.line(kernel + " heads " + std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " to " +
                    std::to_string(c.positions.back()) + (c.fused ? " fused" : "") + (c.window ? " window" : "") +
                    (c.softcap > 0 ? " softcap" : "") + (c.sinks ? " sinks" : ""),
                e.value(), c.prompt && c.type == CACHE_BF16 ? 8e-3 : 2e-3);
}
inline void check_attend(Gpu& gpu, Report& report, const AttendCase& c) {
    check_attend_by(gpu, report, c, LONG);
    if (c.prompt) return;
    check_attend_by(gpu, report, c, PAIRED);
    check_attend_by(gpu, report, c, SHORT);
    AttendCase cluster = c;
    cluster.splits = std::max(2u, c.splits);
    check_attend_by(gpu, report, cluster, SHORT);
}
inline void check_attention(Gpu& gpu, Report& report) {
    for (int type : {CACHE_F16, CACHE_BF16, CACHE_Q8_0}) {
        check_attend(gpu, report, {type, 128, 28, 4, 6, {0, 15, 16, 33, 700}});
        check_attend(gpu, report, {type, 128, 28, 4, 6, {0, 31, 32, 700}, 0, 0, false, true});
        check_attend(gpu, report, {type, 128, 28, 4, 2, {900, 1700}, 0, 0, false, true});
        check_attend_by(gpu, report, {type, 128, 28, 4, 37, {3000, 4100}, 0, 0, false, true}, LONG);
        check_attend(gpu, report, {type, 64, 9, 3, 3, {47, 300}, 0, 0, false, true, true});
        check_attend(gpu, report, {type, 256, 8, 4, 2, {400}, 128, 30, false, true});
        check_attend(gpu, report, {type, 64, 64, 4, 1, {200, 90}, 50, 0, true});
        check_attend(gpu, report, {type, 128, 32, 32, 2, {333}, 0, 0, true, true});
        auto from = [](int first, int count) {
            std::vector<int> p(count);
            for (int i = 0; i < count; i++) p[i] = first + i;
            return p;
        };
        AttendCase c{type, 128, 8, 2, 1, from(0, 200)};
        c.prompt = true;
        check_attend(gpu, report, c);
        c.dim = 64, c.positions = from(77, 100), c.window = 50, c.sinks = true;
        check_attend(gpu, report, c);
        c.dim = 256, c.positions = from(130, 65), c.window = 0, c.softcap = 20;
        check_attend(gpu, report, c);
    }
}
