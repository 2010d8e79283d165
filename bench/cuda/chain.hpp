// Whole steps of named model shapes, layer after layer, as one captured graph with overlapping launches.
#pragma once
#include <functional>

#include "check_attend.hpp"

constexpr double READ_RATE = 4.605e6;   // bytes a microsecond, measured on an H200
constexpr double BF16_RATE = 750e6;     // operations a microsecond

struct Shape {
    const char* name;
    uint32_t layers, dim, heads, kv_heads, head_dim, ff, vocab;
    const char *type, *value, *down, *head;  // `value` and `down`: of every other layer
    double llama_cpp;                        // tokens a second at batch 1
};
static const Shape SHAPES[] = {
    {"Qwen2.5-7B Q4_K_M", 28, 3584, 28, 4, 128, 18944, 152064, "q4_k", "q6_k", "q6_k", "q6_k", 278},
    {"Llama-3-8B Q8_0", 32, 4096, 32, 8, 128, 14336, 128256, "q8_0", "q8_0", "q8_0", "q8_0", 248},
    {"Llama-3-8B BF16", 32, 4096, 32, 8, 128, 14336, 128256, "bf16", "bf16", "bf16", "bf16", 208},
    {"Llama-2-7B Q4_0", 32, 4096, 32, 32, 128, 11008, 32000, "q4_0", "q4_0", "q4_0", "q6_k", 345},
};

// Tiles that repeat a random piece: for timing.
inline Matrix fill_matrix(Gpu& gpu, const Type& t, uint32_t rows, uint32_t cols) {
    static std::map<std::string, Buffer<uint8_t>> pieces;
    constexpr uint32_t PIECE = 1024;  // tiles
    auto& piece = pieces[t.name];
    if (!piece.p) {
        Matrix m = make_matrix(gpu, t, 16 * PIECE / 4, 1024, 90);
        piece = std::move(m.tiles);
    }
    Matrix m{&t, rows, cols, up(rows, 16), up(cols, 256), {}, {}};
    m.tiles = Buffer<uint8_t>(m.bytes());
    for (size_t at = 0; at < m.bytes(); at += piece.n) {
        CHECK(cudaMemcpyAsync(m.tiles.p + at, piece.p, std::min(piece.n, m.bytes() - at), cudaMemcpyDeviceToDevice, gpu.stream));
    }
    return m;
}

struct Layer {
    Matrix q, k, v, o, gate, up, down;
};

struct Model {
    Gpu& gpu;
    const Shape& s;
    uint32_t rows, depth;  // at most; positions in the cache of each sequence
    std::vector<Layer> layers;
    Matrix head;
    size_t weight_bytes = 0;
    uint32_t q_cols, kv_cols, max_blocks, block_bytes;
    Buffer<float> norm, x[2], q[2], k[2], v[2], attention, y[2], h, logits, rope, partial, attend_partial, scale, summands;
    // Parts in which the product before has left its results.
    struct {
        float* tail[3];
        uint32_t tails;
        uint64_t slab;
    } left = {};
    const float* squares = nullptr;  // of the int8 image, where it is of a norm, and how many a row has
    uint32_t squares_parts = 0;
    Buffer<uint8_t> acts, image, cache;
    Buffer<uint32_t> counters, attend_counters, tokens, sequences, first, table, slots;
    Buffer<int32_t> positions, prompt;
    Buffer<uint32_t> tiles, tile_count;

    Model(Gpu& g, const Shape& shape, uint32_t n, uint32_t context)
        : gpu(g), s(shape), rows(n), depth(context), q_cols(shape.heads * shape.head_dim), kv_cols(shape.kv_heads * shape.head_dim) {
        const Type &t = type_of(s.type), &vt = type_of(s.value), &dt = type_of(s.down);
        for (uint32_t i = 0; i < s.layers; i++) {
            Layer l;
            l.q = fill_matrix(gpu, t, q_cols, s.dim), l.k = fill_matrix(gpu, t, kv_cols, s.dim);
            l.v = fill_matrix(gpu, i % 2 ? vt : t, kv_cols, s.dim), l.o = fill_matrix(gpu, t, s.dim, q_cols);
            l.gate = fill_matrix(gpu, t, s.ff, s.dim), l.up = fill_matrix(gpu, t, s.ff, s.dim);
            l.down = fill_matrix(gpu, i % 2 ? dt : t, s.dim, s.ff);
            for (const Matrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) weight_bytes += m->bytes();
            layers.push_back(std::move(l));
        }
        head = fill_matrix(gpu, type_of(s.head), s.vocab, s.dim);
        weight_bytes += head.bytes();
        const size_t padded = up(n, 128) * 128;
        norm = Buffer<float>(random_floats(s.dim, 1)), rope = Buffer<float>(random_floats(padded * s.head_dim, 2));
        for (int i = 0; i < 2; i++) {
            x[i] = Buffer<float>(random_floats(padded * s.dim, 3));
            q[i] = Buffer<float>(padded * q_cols), k[i] = Buffer<float>(padded * kv_cols), v[i] = Buffer<float>(padded * kv_cols);
            y[i] = Buffer<float>(padded * s.dim);
            y[i].zero();
        }
        attention = Buffer<float>(padded * q_cols), h = Buffer<float>(padded * s.ff), logits = Buffer<float>(64ull * s.vocab);
        scale = Buffer<float>(padded + 8 * up(s.dim, 32));
        summands = Buffer<float>(std::min<size_t>(padded, 64) * 12 * (s.dim + q_cols + 2 * kv_cols)), summands.zero();
        const uint32_t widest = up(std::max(s.ff, std::max(s.dim, q_cols)), 256);
        acts = Buffer<uint8_t>(widest * FEW_BYTES), image = Buffer<uint8_t>(widest * 512ull * padded);
        partial = Buffer<float>(2ull * gpu.sms * 128 * 256);
        counters = Buffer<uint32_t>(up(std::max(s.vocab, 2 * s.ff), 64) * up(n, 16) * 8), counters.zero();
        attend_partial = Buffer<float>(padded * s.heads * 8 * 70 * (s.head_dim + 8ull) / s.heads * s.kv_heads);
        attend_counters = Buffer<uint32_t>(padded * s.kv_heads), attend_counters.zero();
        max_blocks = up(depth + 1, 32);
        block_bytes = 2 * s.kv_heads * s.head_dim * 64;
        const uint32_t sequences_count = depth > 1000 ? 1 : std::min(n, 64u);
        cache = Buffer<uint8_t>(static_cast<size_t>(s.layers) * sequences_count * max_blocks * block_bytes), cache.zero();
        std::vector<uint32_t> table_(sequences_count * max_blocks), sequences_(padded), first_(padded, 0);
        for (uint32_t i = 0; i < table_.size(); i++) table_[i] = i;
        for (uint32_t i = 0; i < padded; i++) sequences_[i] = i % sequences_count;
        table = Buffer<uint32_t>(table_), sequences = Buffer<uint32_t>(sequences_), first = Buffer<uint32_t>(first_);
        positions = Buffer<int32_t>(std::vector<int32_t>(padded, static_cast<int32_t>(depth)));
        std::vector<int32_t> prompt_(padded);
        for (uint32_t i = 0; i < padded; i++) prompt_[i] = i;
        prompt = Buffer<int32_t>(prompt_);
        set_rows(n);
        gpu.sync();
    }
    void set_rows(uint32_t n) {
        rows = n;
        tokens = Buffer<uint32_t>(std::vector<uint32_t>{n});
        std::vector<uint32_t> list;
        for (uint32_t r = 0; r < n; r += 64) list.push_back(r), list.push_back(std::min(64u, n - r));
        tiles = Buffer<uint32_t>(list), tile_count = Buffer<uint32_t>(std::vector<uint32_t>{up(n, 64)});
    }
    uint8_t* cache_of(uint32_t layer) { return cache.p + cache.n / s.layers * layer; }

    // With `tails`, queries, keys and values have a second summand; else those that the product before has left.
    void attend(uint32_t layer, bool tails, bool to_image = false) {
        AttendArgs a{};
        a.q = q[0].p, a.k = k[0].p, a.v = v[0].p, a.rope = rope.p;
        if (tails) a.q_tail = q[1].p, a.k_tail = k[1].p, a.v_tail = v[1].p, a.tails = 1;
        else a.q_tail = left.tail[0], a.k_tail = left.tail[1], a.v_tail = left.tail[2], a.tails = left.tails, a.slab = left.slab;
        a.cache = cache_of(layer), a.out = attention.p, a.partial = attend_partial.p, a.counters = attend_counters.p;
        a.tokens = tokens.p, a.positions = positions.p, a.sequences = sequences.p, a.first = first.p, a.blocks = table.p;
        a.block_bytes = block_bytes, a.v_offset = block_bytes / 2, a.scale = 0.088f, a.heads = s.heads, a.kv_heads = s.kv_heads;
        a.max_blocks = max_blocks, a.pairs = s.head_dim / 2;
        if (to_image) a.image = image.p, a.groups = up(rows, 128) * 16, a.image_kind = type_of(s.type).id == BF16 ? IMAGE_BF16 : IMAGE_F16;
        // The product that adds to the row reads whole numbers.
        if (to_image && whole(type_of(s.type))) a.image = acts.p, a.image_kind = IMAGE_INT8;
        // As crates/cuda/src/program/attend.rs cuts them.
        const uint32_t groups = s.kv_heads * rows, chunks = up(depth + 1, 16), sms = gpu.sms;
        const uint32_t many = std::max(1u, std::min(std::min(64u, up(chunks, 8)), sms / groups));
        const uint32_t few = std::max(1u, std::min(chunks <= 8 ? 1u : std::min(8u, up(chunks, 4)), std::max(std::min(2u, sms / groups), (sms - sms / 6) / groups)));
        const bool is_few = few >= many || chunks <= (many <= 8 ? 2 : 1) * few * attend_warps(s.head_dim, SHORT);
        const AttendWay way = groups > sms ? PAIRED : is_few ? SHORT : LONG;
        const uint32_t splits = is_few ? few : many;
        const uint32_t warps = attend_warps(s.head_dim, way);
        gpu.launch(gpu.kernel("attend", attend_name("f16", s.head_dim, way)), dim3(splits, s.kv_heads, rows), 32 * warps,
                   attend_shared(s.head_dim, warps), a, true, way == SHORT ? splits : 1);
    }
    // Prompts of one sequence that fill the rows; keys and values are taken to be in the cache.
    void flash(uint32_t layer) {
        FlashArgs f{};
        f.q = q[0].p, f.cache = cache_of(layer), f.out = attention.p, f.tiles = tiles.p, f.tile_count = tile_count.p;
        f.positions = prompt.p, f.sequences = first.p, f.first = first.p, f.blocks = table.p, f.block_bytes = block_bytes;
        f.v_offset = block_bytes / 2, f.scale = 0.088f, f.heads = s.heads, f.kv_heads = s.kv_heads, f.max_blocks = max_blocks;
        gpu.launch(gpu.kernel("flash", "flash_f16_" + std::to_string(s.head_dim)), dim3(rows / 64, s.heads), 128, 2 * s.head_dim * 320, f);
    }
    // One token by mat-vecs.
    void decode() {
        auto run = [&](const std::string& kernel, const Type& t, const MatvecArgs& a, uint32_t row_tiles) {
            const uint32_t blocks = std::min<uint32_t>(gpu.sms, row_tiles), gated = kernel.find("_glu_") != std::string::npos;
            const size_t shared = matvec_shared(t, a.k_tiles, (1 + gated) * up(row_tiles, blocks) + a.split);
            gpu.launch(gpu.kernel("matvec", kernel), blocks, 512, shared, a);
        };
        int at = 0;
        MatvecArgs n{};  // with the sum and the norm first
        n.y = y[0].p, n.y_tail = y[1].p, n.norm = norm.p, n.cols = s.dim, n.k_tiles = up(s.dim, 256), n.eps = 1e-6f, n.input = ACTS_RMS_NORM;
        for (uint32_t i = 0; i < s.layers; i++) {
            const Layer& l = layers[i];
            const std::string t = l.q.type->name, vt = l.v.type->name;
            MatvecArgs a = n;
            a.x = x[at].p, a.x_out = x[at ^= 1].p, a.segs = 3, a.split = 1;
            a.seg[0] = l.q.segment(q[0].p, q[1].p), a.seg[1] = l.k.segment(k[0].p, k[1].p), a.seg[2] = l.v.segment(v[0].p, v[1].p);
            run("matvec_" + t + (t == vt ? "" : "_" + vt), *l.q.type, a, l.q.row_tiles + 2 * l.k.row_tiles);
            attend(i, true);
            MatvecArgs o{};
            o.seg[0] = l.o.segment(y[0].p, y[1].p), o.segs = 1, o.split = 1, o.input = ACTS_QUANTIZE, o.x = attention.p;
            o.cols = q_cols, o.k_tiles = l.o.k_tiles;
            run("matvec_" + t, *l.o.type, o, l.o.row_tiles);
            MatvecArgs g = n;
            g.x = x[at].p, g.x_out = x[at ^= 1].p, g.segs = 2;
            g.seg[0] = l.gate.segment(h.p), g.seg[1] = l.up.segment(nullptr);
            if (!l.gate.type->floats) g.acts_out = acts.p;
            run("matvec_glu_" + t, *l.gate.type, g, l.gate.row_tiles);
            MatvecArgs d{};
            d.seg[0] = l.down.segment(y[0].p, y[1].p), d.segs = 1, d.split = 1, d.cols = s.ff, d.k_tiles = l.down.k_tiles;
            d.acts = acts.p, d.x = h.p, d.input = l.down.type->floats ? ACTS_QUANTIZE : ACTS_READY;
            run(std::string("matvec_") + l.down.type->name, *l.down.type, d, l.down.row_tiles);
        }
        n.x = x[at].p, n.segs = 1, n.seg[0] = head.segment(logits.p);
        run(std::string("matvec_") + head.type->name, *head.type, n, head.row_tiles);
    }

    // Whether large products with a type are in whole numbers.
    bool whole(const Type& t) const { return rows <= 8 && t.whole(); }
    void pack(const float* from, const float* add, float* sum, uint32_t cols, bool normalise, const Type& t, bool few = false) {
        ActsArgs p{};
        p.rows = tokens.p, p.x = from, p.y = add, p.x_out = sum, p.norm = normalise ? norm.p : nullptr, p.out = image.p;
        p.scale = scale.p, p.eps = 1e-6f, p.cols = cols, p.k_tiles = up(cols, 256), p.groups = up(rows, 128) * 16;
        if (add) p.y_tail = left.tail[0], p.tails = left.tails, p.slab = left.slab;
        squares = nullptr;
        if (few) {
            gpu.launch(gpu.kernel("acts", "pack_few"), dim3(rows, up(p.k_tiles, 2)), 64, 0, p);
            return;
        }
        const char* kind = rows > 64 ? "pack_many_rows_" : p.tails > 0 ? "pack_parts_" : "pack_rows_";
        // Warps that keep all of a row, if there are so many.
        const uint32_t blocks = pack_blocks(rows, p.k_tiles), tiles = up(p.k_tiles, blocks);
        const int threads = 32 * (rows > 64 ? std::min(14u, std::max(8u, up(tiles, 6))) : std::min(p.tails > 0 ? 14u : 32u, tiles));
        gpu.launch(gpu.kernel("acts", std::string(kind) + (t.id == BF16 ? "bf16" : "f16")), rows * blocks, threads, 0, p, true, blocks);
    }
    // `in_parts`: the reader adds parts.
    void product(std::vector<const Matrix*> m, std::vector<float*> out, bool gated, bool in_parts = false, bool few = false) {
        const Type& t = *m[0]->type;
        if (few) {
            const FewShape shape = few_shape(t, m[0]->rows, m[0]->k_tiles, gated ? FEW_GATED : FEW_PLAIN, 0, gpu.sms);
            FewArgs f{};
            for (size_t i = 0; i < m.size(); i++) f.seg[i] = m[i]->segment(out[i], summands.p);
            f.tokens = tokens.p, f.acts = image.p, f.squares = squares, f.norm_parts = squares_parts, f.eps = 1e-6f, f.slab = static_cast<uint64_t>(rows) * m[0]->rows;
            left = {{summands.p}, shape.parts - 1, f.slab};
            launch_few(gpu, shape, m[0]->cols, f);
            return;
        }
        const Way way = rows <= 8 ? BATCH : HOPPER;
        const ProductShape shape = product_shape(t, rows, gated, way, m.back()->type);
        ProductArgs a{};
        for (size_t i = 0; i < m.size(); i++) a.seg[i] = m[i]->segment(out[i]);
        a.tokens = tokens.p, a.acts = image.p, a.scale = scale.p, a.partial = partial.p, a.counters = counters.p, a.factor = t.factor();
        a.segs = m.size(), a.k_tiles = m[0]->k_tiles, a.groups = up(rows, 128) * 16, a.stages = shape.stages;
        ProductShape::Parts parts = {gpu.sms * static_cast<uint32_t>(blocks_a_multiprocessor(rows, way)), 0};
        if (in_parts && rows <= 64) parts = shape.parts(m, parts.grid);
        left = {{}, parts.parts ? parts.parts - 1 : 0, 0};
        float* tail = summands.p;
        for (size_t i = 0; i < m.size(); i++) left.tail[i] = a.seg[i].tail = tail, tail += rows * m[i]->rows, left.slab += rows * m[i]->rows;
        a.parts = parts.parts, a.slab = left.slab;
        gpu.launch(gpu.kernel(shape.file, shape.name), parts.grid, shape.threads, shape.shared, a);
    }
    // A product of attention's result in whole numbers added to rows, and the int8 image of their norm.
    void added(const Matrix& o, int at) {
        const FewShape shape = few_shape(*o.type, o.rows, o.k_tiles, FEW_ADDED, 1, gpu.sms);
        FewArgs f{};
        f.seg[0] = o.segment(nullptr), f.tokens = tokens.p, f.acts = acts.p, f.x = x[at].p, f.x_out = x[at ^ 1].p, f.norm = norm.p;
        f.image_out = image.p, f.squares_out = scale.p, f.out_parts = up(o.rows, 32), f.eps = 1e-6f;
        launch_few(gpu, shape, o.cols, f);
        squares = scale.p, squares_parts = f.out_parts;
    }
    // All rows through all layers; `attention_of` runs a layer's attention, and makes the image of its result but for prompts.
    void step(bool prompt, const std::function<void(uint32_t)>& attention_of) {
        int at = 0;
        for (uint32_t i = 0; i < s.layers; i++) {
            const Layer& l = layers[i];
            const Type& t = *l.q.type;
            pack(x[at].p, y[0].p, x[at ^ 1].p, s.dim, true, t);
            at ^= 1;
            product({&l.q, &l.k, &l.v}, {q[0].p, k[0].p, v[0].p}, false, !prompt);
            attention_of(i);
            if (prompt) pack(attention.p, nullptr, nullptr, q_cols, false, t);
            if (!prompt && whole(t)) {
                added(l.o, at);
            } else {
                product({&l.o}, {y[0].p}, false, true);
                pack(x[at].p, y[0].p, x[at ^ 1].p, s.dim, true, t);
            }
            at ^= 1;
            product({&l.gate, &l.up}, {h.p, nullptr}, true, false, whole(t));
            pack(h.p, nullptr, nullptr, s.ff, false, *l.down.type, whole(*l.down.type));
            product({&l.down}, {y[0].p}, false, true, whole(*l.down.type));
        }
        if (prompt) return;  // one row's head is 0.1 ms and not of interest here
        pack(x[at].p, y[0].p, nullptr, s.dim, true, *head.type);
        product({&head}, {logits.p}, false);
    }
    double operations() const {  // of a token, without the head
        const double layer = static_cast<double>(s.dim) * (2.0 * q_cols + 2.0 * kv_cols + 3.0 * s.ff);
        return 2 * layer * s.layers;
    }
};
