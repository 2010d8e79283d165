// The fast kernels against sums in double precision.
#pragma once
#include "weights.hpp"

struct Report {
    int checks = 0, wrong = 0, missing = 0;
    void line(const std::string& what, double error, double limit) {
        checks++;
        const bool ok = error <= limit;  // false for NaN
        if (!ok) wrong++;
        if (!ok || getenv("VERBOSE")) printf("%-58s %.2e of %.0e %s\n", what.c_str(), error, limit, ok ? "" : "WRONG");
        fflush(stdout);
    }
};

// Whether a kernel was built; if not, the report says so.
inline bool built(Gpu& gpu, Report& report, const std::string& file, const std::string& kernel) {
    if (gpu.has(file, kernel)) return true;
    printf("not built: %s\n", kernel.c_str());
    report.missing++;
    return false;
}

// |got - want| / |want| over all that was added.
struct Error {
    double difference = 0, size = 0;
    void add(double got, double want) {
        difference += (got - want) * (got - want);
        size += want * want;
    }
    double value() const { return std::sqrt(difference / size); }
};

// What int8 activations stand for: a scale for each 16 columns, or 32 in large products of a few rows.
inline std::vector<double> as_int8(const std::vector<double>& x, size_t group = 16) {
    std::vector<double> r(x.size());
    for (size_t b = 0; b < x.size(); b += group) {
        const size_t end = std::min(b + group, x.size());
        double top = 0;
        for (size_t i = b; i < end; i++) top = std::max(top, std::fabs(x[i]));
        for (size_t i = b; i < end; i++) r[i] = top > 0 ? std::nearbyint(x[i] * 127 / top) * top / 127 : 0;
    }
    return r;
}
inline double silu(double x) { return x / (1 + std::exp(-x)); }
inline std::vector<double> normalised(const std::vector<double>& x, const std::vector<float>& w, double eps) {
    double squares = 0;
    for (double v : x) squares += v * v;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
    std::vector<double> r(x.size());
    for (size_t i = 0; i < x.size(); i++) r[i] = x[i] * factor * w[i];
    return r;
}
inline std::vector<double> product(const Matrix& m, const std::vector<double>& x, uint32_t first = 0, uint32_t rows = 0) {
    if (!rows) rows = m.rows;
    std::vector<double> y(rows), w;
    for (uint32_t r = 0; r < rows; r++) {
        row_values(*m.type, m.raw, first + r, m.cols, w);
        double sum = 0;
        for (uint32_t c = 0; c < m.cols; c++) sum += w[c] * x[c];
        y[r] = sum;
    }
    return y;
}
inline Error compare(const std::vector<float>& got, const std::vector<double>& want) {
    Error e;
    for (size_t i = 0; i < want.size(); i++) e.add(got[i], want[i]);
    return e;
}
inline std::vector<double> doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

// Shared memory of a mat-vec: partial sums of 6 row tiles at once, or of all that a block has, if they are few. More would
// fit, but then the L1 cache is smaller.
inline size_t matvec_shared(const Type& t, uint32_t k_tiles, uint32_t own = 6) {
    return k_tiles * (t.floats ? 1024 : 384) + 640 + (own <= 12 ? std::max(6u, up(own, 2) * 2) : 6) * 4096;
}

inline void check_matvec(Gpu& gpu, Report& report, const Type& t, uint32_t cols) {
    if (!built(gpu, report, "matvec", std::string("matvec_glu_") + t.name)) return;
    const std::string name = std::string(t.name) + " " + std::to_string(cols) + " columns, ";
    const cudaKernel_t plain = gpu.kernel("matvec", std::string("matvec_") + t.name);
    const cudaKernel_t gated = gpu.kernel("matvec", std::string("matvec_glu_") + t.name);
    const uint32_t rows[3] = {1100, 208, 53};
    Matrix m[3];
    for (int i = 0; i < 3; i++) m[i] = make_matrix(gpu, t, rows[i], cols, 10 + i);
    const uint32_t row_tiles = m[0].row_tiles + m[1].row_tiles + m[2].row_tiles;
    const auto x = random_floats(cols, 1), y = random_floats(cols, 2), y2 = random_floats(cols, 3), bias = random_floats(2000, 5);
    auto norm = random_floats(cols, 4);
    Buffer<float> dx(x), dy(y), dy2(y2), dn(norm), db(bias), out(3000), tail(3000), x_out(cols);
    // Activations as the kernels see them; float weights take them as they are.
    auto seen = [&](const std::vector<double>& v) { return t.floats ? v : as_int8(v); };
    const double limit = t.floats ? 2e-6 : 5e-4;
    MatvecArgs a{};
    float* at = out.p;
    float* tail_at = tail.p;
    for (int i = 0; i < 3; i++) {
        a.seg[i] = m[i].segment(at, tail_at, i == 1 ? db.p : nullptr);
        at += rows[i], tail_at += rows[i];
    }
    a.x = dx.p, a.cols = cols, a.k_tiles = m[0].k_tiles, a.segs = 3, a.eps = 1e-6f, a.input = ACTS_QUANTIZE, a.residual = db.p;
    const size_t shared = matvec_shared(t, a.k_tiles);
    auto all = [&](const std::vector<double>& v) {
        std::vector<double> want;
        for (int i = 0; i < 3; i++) {
            auto p = product(m[i], v);
            for (uint32_t r = 0; r < rows[i]; r++) want.push_back(p[r] + (i < 2 ? bias[r] : 0));
        }
        return want;
    };
    gpu.launch(plain, std::min<uint32_t>(gpu.sms, row_tiles), 512, shared, a);
    gpu.sync();
    report.line(name + "three matrices", compare(out.read(), all(seen(doubles(x)))).value(), limit);
    // With sums and norm before, cut evenly.
    std::vector<double> sum(cols);
    for (uint32_t i = 0; i < cols; i++) sum[i] = static_cast<double>(x[i]) + y[i] + y2[i];
    a.y = dy.p, a.y_tail = dy2.p, a.x_out = x_out.p, a.norm = dn.p, a.input = ACTS_RMS_NORM, a.split = 1;
    out.poison(), tail.poison();
    const uint32_t grid = std::min<uint32_t>(gpu.sms, row_tiles);
    for (uint32_t g : {grid, 7u}) {
        gpu.launch(plain, g, 512, shared, a);
        gpu.sync();
        auto o = out.read();
        const auto o2 = tail.read();
        for (size_t i = 0; i < o.size(); i++) o[i] += o2[i];
        report.line(name + "norm, cut evenly over " + std::to_string(g), compare(o, all(seen(normalised(sum, norm, 1e-6)))).value(), limit);
    }
    report.line(name + "the sum", compare(x_out.read(), sum).value(), 1e-6);
    // Gated, as floats and as activations of a next product.
    const uint32_t h_rows = t.elements == 256 ? 1024 : 1120;
    const Matrix gate = make_matrix(gpu, t, h_rows, cols, 20), up_ = make_matrix(gpu, t, h_rows, cols, 21);
    const Matrix down = make_matrix(gpu, t, 100, h_rows, 22);
    Buffer<uint8_t> acts(down.k_tiles * 384);
    MatvecArgs b{};
    b.seg[0] = gate.segment(out.p), b.seg[1] = up_.segment(nullptr);
    b.x = dx.p, b.cols = cols, b.k_tiles = gate.k_tiles, b.segs = 2, b.input = ACTS_QUANTIZE;
    out.poison();
    gpu.launch(gated, std::min<uint32_t>(gpu.sms, gate.row_tiles), 512, shared, b);
    gpu.sync();
    const auto seen_x = seen(doubles(x));
    auto g = product(gate, seen_x), u = product(up_, seen_x);
    for (uint32_t i = 0; i < h_rows; i++) g[i] = silu(g[i]) * u[i];
    report.line(name + "gated", compare(out.read(), g).value(), limit * 3);
    MatvecArgs d{};
    d.seg[0] = down.segment(out.p);
    d.cols = h_rows, d.k_tiles = down.k_tiles, d.segs = 1, d.input = ACTS_READY, d.acts = acts.p;
    Buffer<float> h(h_rows);
    if (t.floats) {
        b.seg[0].out = h.p;
        d.input = ACTS_QUANTIZE, d.x = h.p;
    } else {
        b.acts_out = acts.p;
    }
    gpu.launch(gated, 5, 512, shared, b);
    out.poison();
    gpu.launch(plain, std::min<uint32_t>(gpu.sms, down.row_tiles), 512, matvec_shared(t, d.k_tiles), d);
    gpu.sync();
    report.line(name + "gated, then down", compare(out.read(), product(down, seen(g))).value(), limit * 20);
    // Experts: gate and up of the chosen ones times their weights, then the sum of down.
    if (!built(gpu, report, "expert_matvec", std::string("expert_matvec_glu_") + t.name)) return;
    const uint32_t experts = 6, used = 3;
    const std::vector<float> weights = {0.5f, 0.3f, 0.2f};
    const std::vector<int32_t> ids = {4, 0, 5};
    const uint32_t e_rows = t.elements == 256 ? 256 : 160;
    const Matrix eg = make_matrix(gpu, t, experts * e_rows, cols, 30), eu = make_matrix(gpu, t, experts * e_rows, cols, 31);
    const Matrix ed = make_matrix(gpu, t, experts * 48, e_rows, 32);
    Buffer<int32_t> dids(ids);
    Buffer<float> dweights(weights);
    Buffer<uint8_t> e_acts(used * ed.k_tiles * 384);
    Buffer<float> e_h(used * e_rows);
    MatvecArgs e{};
    e.seg[0] = eg.segment(e_h.p), e.seg[1] = eu.segment(nullptr);
    for (int i = 0; i < 2; i++) e.seg[i].rows = e_rows, e.seg[i].row_tiles = e_rows / 16;
    e.x = dx.p, e.cols = cols, e.k_tiles = eg.k_tiles, e.segs = 2, e.input = ACTS_QUANTIZE;
    e.experts = dids.p, e.weights = dweights.p, e.used = used, e.expert_bytes = eg.bytes() / experts;
    if (!t.floats) e.acts_out = e_acts.p;
    gpu.launch(gpu.kernel("expert_matvec", std::string("expert_matvec_glu_") + t.name), 11, 512, shared, e);
    MatvecArgs f{};
    f.seg[0] = ed.segment(out.p, tail.p);
    f.split = 1;
    f.seg[0].rows = 48, f.seg[0].row_tiles = 3;
    f.cols = e_rows, f.k_tiles = ed.k_tiles, f.segs = 1, f.input = t.floats ? ACTS_QUANTIZE : ACTS_READY;
    f.acts = e_acts.p, f.x = e_h.p, f.experts = dids.p, f.used = used, f.expert_bytes = ed.bytes() / experts;
    out.poison(), tail.poison();
    gpu.launch(gpu.kernel("expert_matvec", std::string("expert_matvec_") + t.name), 4, 512, matvec_shared(t, used * f.k_tiles), f);
    gpu.sync();
    std::vector<double> want(48);
    auto sums = out.read();
    const auto tails = tail.read();
    for (size_t i = 0; i < 48; i++) sums[i] += tails[i];
    for (uint32_t i = 0; i < used; i++) {
        auto p = product(eg, seen_x, ids[i] * e_rows, e_rows), q = product(eu, seen_x, ids[i] * e_rows, e_rows);
        for (uint32_t r = 0; r < e_rows; r++) p[r] = silu(p[r]) * q[r];
        const auto y = product(ed, seen(p), ids[i] * 48, 48);
        for (uint32_t r = 0; r < 48; r++) want[r] += weights[i] * y[r];
    }
    report.line(name + "experts", compare(sums, want).value(), limit * 20);
}

// The last of three matrices has another type.
inline void check_mixed(Gpu& gpu, Report& report, const std::string& one, const std::string& two) {
    if (!built(gpu, report, "matvec", "matvec_" + one + "_" + two)) return;
    const uint32_t cols = 1024, rows[3] = {512, 64, 80};
    Matrix m[3];
    for (int i = 0; i < 3; i++) m[i] = make_matrix(gpu, type_of(i == 2 ? two : one), rows[i], cols, 40 + i);
    const auto x = random_floats(cols, 1);
    Buffer<float> dx(x), out(656);
    MatvecArgs a{};
    a.seg[0] = m[0].segment(out.p), a.seg[1] = m[1].segment(out.p + 512), a.seg[2] = m[2].segment(out.p + 576);
    a.x = dx.p, a.cols = cols, a.k_tiles = 4, a.segs = 3, a.input = ACTS_QUANTIZE;
    gpu.launch(gpu.kernel("matvec", "matvec_" + one + "_" + two), 41, 512, matvec_shared(*m[0].type, 4), a);
    gpu.sync();
    std::vector<double> want;
    for (auto& i : m) {
        for (double v : product(i, as_int8(doubles(x)))) want.push_back(v);
    }
    report.line(one + " and " + two, compare(out.read(), want).value(), 5e-4);
}

// Which kernels do products of many rows: those of every device, or those of Hopper.
enum Way { BATCH, HOPPER };

// Blocks that share a multiprocessor.
inline int blocks_a_multiprocessor(uint32_t n, Way way) { return n <= (way == HOPPER ? 32 : 8) ? 2 : 1; }

// Sizes of products of many rows.
struct ProductShape {
    std::string file, name;  // kernel
    int threads;
    size_t shared;
    uint32_t stages, tokens, row_tiles;  // tokens and row tiles of a block

    // How results are left in parts: blocks of threads, and parts; 0 where they are not. As src/program/batch.rs has it.
    struct Parts {
        uint32_t grid, parts;
    };
    Parts parts(const std::vector<const Matrix*>& m, uint32_t most_grid) const {
        const uint32_t k_tiles = m[0]->k_tiles, least = tokens <= 32 ? 1 : tokens <= 64 ? 2 : 3;
        uint32_t blocks = 0, most = 0;
        for (const Matrix* i : m) blocks += up(i->row_tiles, row_tiles);
        const uint32_t units = blocks * k_tiles, grid = up(units, std::max(up(units, most_grid), least));
        const uint32_t each = units / grid, more = units % grid, longer = more * (each + 1);
        auto owner = [&](uint32_t unit) { return unit < longer ? unit / (each + 1) : more + (unit - longer) / each; };
        for (uint32_t b = 0; b < blocks; b++) most = std::max(most, owner((b + 1) * k_tiles - 1) - owner(b * k_tiles) + 1);
        return each < k_tiles && most >= 2 && most <= 12 ? Parts{grid, most} : Parts{most_grid, 0};
    }
};
// `last`: the type of the last matrix.
inline ProductShape product_shape(const Type& t, uint32_t n, bool gated, Way way, const Type* last = nullptr) {
    const std::string glu = gated ? "glu_" : "";
    if (way == HOPPER) {
        const uint32_t size = n <= 16 ? 16 : n <= 32 ? 32 : n <= 64 ? 64 : 128, acts_pieces = size > 64 ? 5 : 6, warps = size == 64 ? 16 : 8;
        const uint32_t tile = std::max(t.tile, last ? last->tile : 0), row_tiles = size == 128 ? 16 : warps, piece = row_tiles * (t.floats ? tile / 4 : tile);
        const uint32_t pieces = std::min(6u, ((size > 32 ? 225 : 110) * 1024 - acts_pieces * size * 128) / piece);
        const std::string mixed = last && last != &t ? std::string("_") + last->name : "";
        return {std::string("hopper_") + t.name, "hopper_" + glu + t.name + mixed + "_" + std::to_string(size), static_cast<int>(32 * warps + 128),
                acts_pieces * size * 128 + pieces * piece + 16 * (acts_pieces + pieces) + 1024, 0, size, row_tiles};
    }
    const uint32_t size = n <= 8 ? 8 : n <= 16 ? 16 : n <= 32 ? 32 : 64, warps = t.floats ? 4 : 8;
    const uint32_t piece = warps * (size == 8 ? 1 : 2) * std::max(t.tile, last ? last->tile : 0) + size / 8 * 4096;
    const uint32_t stages = std::min(6u, ((size == 8 ? 112 : 227) * 1024 - 256) / (piece + 16));
    const std::string mixed = last && last != &t ? std::string("_") + last->name : "";
    return {std::string("batch_") + t.name, "batch_" + glu + t.name + mixed + "_" + std::to_string(size), static_cast<int>(32 * (warps + 1)), stages * (piece + 16ull), stages, size, warps * (size == 8 ? 1 : 2)};
}
// Buffers that products share.
struct ProductRoom {
    Buffer<float> partial;
    Buffer<uint32_t> counters;
    ProductRoom(int sms, uint32_t outputs) : partial(2ull * sms * 128 * 256), counters(outputs) { counters.zero(); }
};

// Blocks that make a row of the image of some rows.
inline uint32_t pack_blocks(uint32_t rows, uint32_t k_tiles) {
    uint32_t blocks = 1;
    while (rows <= 8 && 2 * blocks <= std::min(8u, k_tiles)) blocks *= 2;
    return blocks;
}

inline void check_products(Gpu& gpu, Report& report, ProductRoom& room, const Type& t, uint32_t cols, uint32_t n, Way way, const Type* last = nullptr) {
    const std::string name = std::string(t.name) + " " + std::to_string(cols) + " columns, " + std::to_string(n) + " rows" + (way == HOPPER ? ", hopper, " : ", ") + (last ? std::string("last ") + last->name + ", " : "");
    if (const ProductShape s = product_shape(t, n, !last, way, last); !built(gpu, report, s.file, s.name)) return;
    const uint32_t rows[3] = {400, 100, 53}, total = 553;
    Matrix m[3];
    for (int i = 0; i < 3; i++) m[i] = make_matrix(gpu, i == 2 && last ? *last : t, rows[i], cols, 50 + i);
    // Stale rows behind the true ones are NaN.
    const uint32_t groups = up(n, 128) * 16, k_tiles = m[0].k_tiles;
    Buffer<uint8_t> image(static_cast<size_t>(k_tiles) * 4 * groups * 1024);
    const auto x = random_floats(static_cast<size_t>(n) * cols, 60), y = random_floats(x.size(), 61), norm = random_floats(cols, 62);
    const auto bias = random_floats(400, 64);
    Buffer<float> dx(x), dy(y), dn(norm), db(bias), scale(n), x_out(x.size()), out(static_cast<size_t>(n) * total);
    Buffer<uint32_t> count(std::vector<uint32_t>{n});
    const bool bf16 = t.id == BF16;
    ActsArgs p{};
    p.rows = count.p, p.x = dx.p, p.y = dy.p, p.x_out = x_out.p, p.norm = dn.p, p.out = image.p, p.scale = scale.p;
    p.eps = 1e-5f, p.cols = cols, p.k_tiles = k_tiles, p.groups = groups;
    const uint32_t blocks = pack_blocks(n, k_tiles);
    gpu.launch(gpu.kernel("acts", std::string(n > 64 ? "pack_many_rows_" : "pack_rows_") + (bf16 ? "bf16" : "f16")), (n + 3) * blocks, n > 64 ? 128 : 96, 0, p, true, blocks);
    const ProductShape shape = product_shape(t, n, false, way, last);
    ProductArgs a{};
    a.seg[0] = m[0].segment(out.p), a.seg[1] = m[1].segment(out.p + n * 400, nullptr, db.p), a.seg[2] = m[2].segment(out.p + n * 500);
    a.factor = t.factor(), a.tokens = count.p, a.acts = image.p, a.scale = bf16 ? nullptr : scale.p;
    a.partial = room.partial.p, a.counters = room.counters.p, a.segs = 3, a.k_tiles = k_tiles, a.groups = groups, a.stages = shape.stages;
    gpu.launch(gpu.kernel(shape.file, shape.name), gpu.sms * blocks_a_multiprocessor(n, way), shape.threads, shape.shared, a);
    gpu.sync();
    std::vector<std::vector<double>> in(n);
    for (uint32_t i = 0; i < n; i++) {
        std::vector<double> sum(cols);
        for (uint32_t c = 0; c < cols; c++) sum[c] = static_cast<double>(x[i * cols + c]) + y[i * cols + c];
        in[i] = normalised(sum, norm, 1e-5);
    }
    // All rows of some tokens.
    const uint32_t step = n > 16 ? 7 : 1;
    Error e;
    auto got = out.read();
    std::vector<double> w;
    for (int s = 0; s < 3; s++) {
        const float* o = got.data() + (s == 0 ? 0 : n * (s == 1 ? 400 : 500));
        for (uint32_t r = 0; r < rows[s]; r++) {
            row_values(*m[s].type, m[s].raw, r, cols, w);
            for (uint32_t i = 0; i < n; i += r % step + 1) {
                double sum = s == 1 ? bias[r] : 0;
                for (uint32_t c = 0; c < cols; c++) sum += w[c] * in[i][c];
                e.add(o[i * rows[s] + r], sum);
            }
        }
    }
    report.line(name + "three matrices", e.value(), bf16 ? 5e-3 : 1.5e-3);
    const std::vector<float> once = got;
    out.poison();
    gpu.launch(gpu.kernel(shape.file, shape.name), gpu.sms * blocks_a_multiprocessor(n, way), shape.threads, shape.shared, a);
    gpu.sync();
    got = out.read();
    report.line(name + "again the same", memcmp(got.data(), once.data(), got.size() * 4) == 0 ? 0 : 1, 0);
    // In parts, for a reader that adds them.
    if (const ProductShape::Parts left = shape.parts({&m[0], &m[1], &m[2]}, gpu.sms * blocks_a_multiprocessor(n, way)); left.parts && n <= 64) {
        ProductArgs p = a;
        p.parts = left.parts, p.slab = static_cast<uint64_t>(n) * total;
        Buffer<float> tails((left.parts - 1) * p.slab);
        for (int i = 0, at = 0; i < 3; at += n * rows[i++]) p.seg[i].tail = tails.p + at;
        out.poison();
        gpu.launch(gpu.kernel(shape.file, shape.name), left.grid, shape.threads, shape.shared, p);
        gpu.sync();
        got = out.read();
        const auto others = tails.read();
        for (size_t i = 0; i < others.size(); i++) got[i % p.slab] += others[i];
        report.line(name + "in " + std::to_string(left.parts) + " parts", compare(got, doubles(once)).value(), 1e-6);
    }
    if (last) return;
    // Gated.
    const Matrix gate = make_matrix(gpu, t, 400, cols, 70), up_ = make_matrix(gpu, t, 400, cols, 71);
    const ProductShape gs = product_shape(t, n, true, way);
    a.seg[0] = gate.segment(out.p), a.seg[1] = up_.segment(nullptr), a.segs = 2, a.stages = gs.stages;
    out.poison();
    gpu.launch(gpu.kernel(gs.file, gs.name), gpu.sms * blocks_a_multiprocessor(n, way), gs.threads, gs.shared, a);
    gpu.sync();
    got = out.read();
    Error f;
    std::vector<double> v;
    for (uint32_t r = 0; r < 400; r++) {
        row_values(t, gate.raw, r, cols, w);
        row_values(t, up_.raw, r, cols, v);
        for (uint32_t i = 0; i < n; i += r % step + 1) {
            double one = 0, two = 0;
            for (uint32_t c = 0; c < cols; c++) one += w[c] * in[i][c], two += v[c] * in[i][c];
            f.add(got[i * 400 + r], silu(one) * two);
        }
    }
    report.line(name + "gated", f.value(), bf16 ? 8e-3 : 2.5e-3);
}

// Large products of up to 8 rows, as src/program/few.rs has them.
struct FewShape {
    std::string name;
    uint32_t part_tiles, parts, grid;
    size_t shared;
};
// `parts` of the columns; 0: as the program would have it, with results in summands where they may be.
enum FewKind { FEW_PLAIN, FEW_GATED, FEW_ADDED };
inline FewShape few_shape(const Type& t, uint32_t rows, uint32_t k_tiles, FewKind kind, uint32_t parts, uint32_t sms) {
    const uint32_t rooms = 16 * (t.id == Q4_K ? 2560 : t.id == Q5_K ? 3072 : 4096), row_tiles = up(rows, 16);
    // Row tiles that belong together, of gate and up or of 32 rows.
    const uint32_t unit = kind == FEW_PLAIN ? 1 : 2, units = kind == FEW_ADDED ? up(row_tiles, 2) : row_tiles;
    FewShape best{};
    size_t least = SIZE_MAX;
    for (uint32_t p = parts ? parts : 1; p <= (parts ? parts : kind == FEW_PLAIN ? 7 : 1); p++) {
        const uint32_t tiles = up(k_tiles, p), blocks = std::min(std::max(sms / p, 1u), units), own = up(units, blocks);
        const uint32_t sums = std::min(up(tiles, 2), 16u) * 512, fixed = rooms + tiles * FEW_BYTES;
        if (fixed + 2 * sums > 200 * 1024 || up(k_tiles, tiles) != p) continue;
        const size_t bytes = static_cast<size_t>(own) * tiles * t.tile + tiles * FEW_BYTES;
        const uint32_t kept = std::min(up(own * unit, 2) * 2, (200 * 1024 - fixed) / (2 * sums) * 2);
        const char* names[] = {"few_", "few_glu_", "few_add_"};
        if (bytes < least) least = bytes, best = {std::string(names[kind]) + t.name, tiles, p, blocks * p, fixed + static_cast<size_t>(kept) * sums};
    }
    return best;
}
inline void launch_few(Gpu& gpu, const FewShape& s, uint32_t cols, FewArgs a) {
    a.k_tiles = up(cols, 256), a.part_tiles = s.part_tiles, a.norm_cols = cols;
    gpu.launch(gpu.kernel("few", s.name), s.grid, 512, s.shared, a);
}
// How far the sums of 32 columns of an int8 image are from those of its values, of all tokens and columns.
inline double few_sums(const std::vector<uint8_t>& image, uint32_t tokens, uint32_t cols) {
    Error e;
    for (uint32_t token = 0; token < tokens; token++) {
        for (uint32_t first = 0; first < cols; first += 32) {
            double sum = 0;
            for (uint32_t c = first; c < first + 32; c++) sum += few_value(image, token, c);
            e.add(few_sum(image, token, first / 32), sum);
        }
    }
    return e.value();
}
inline void check_few(Gpu& gpu, Report& report, const Type& t, uint32_t cols, uint32_t n) {
    if (!built(gpu, report, "few", std::string("few_") + t.name)) return;
    const std::string name = std::string(t.name) + " " + std::to_string(cols) + " columns, " + std::to_string(n) + " rows, whole numbers, ";
    const uint32_t rows = 2200, k_tiles = up(cols, 256), norm_parts = up(k_tiles, 2);
    const Matrix m[2] = {make_matrix(gpu, t, rows, cols, 50), make_matrix(gpu, t, rows, cols, 51)};
    const auto x = random_floats(static_cast<size_t>(n) * cols, 60), y = random_floats(x.size(), 61), norm = random_floats(cols, 62), bias = random_floats(2 * rows, 64);
    Buffer<uint8_t> image(k_tiles * FEW_BYTES);
    Buffer<float> dx(x), dy(y), dn(norm), db(bias), squares(8 * norm_parts), out(static_cast<size_t>(n) * rows), tails(4 * out.n);
    Buffer<uint32_t> count(std::vector<uint32_t>{n});
    std::vector<double> w[2];
    for (const bool normed : {true, false}) {
        ActsArgs p{};
        p.rows = count.p, p.x = dx.p, p.y = dy.p, p.out = image.p, p.eps = 1e-5f, p.cols = cols, p.k_tiles = k_tiles;
        if (normed) p.norm = dn.p, p.scale = squares.p;
        image.poison();
        gpu.launch(gpu.kernel("acts", "pack_few"), dim3(8, norm_parts), 64, 0, p);
        std::vector<std::vector<double>> in(n);
        for (uint32_t i = 0; i < n; i++) {
            std::vector<double> sum(cols);
            for (uint32_t c = 0; c < cols; c++) sum[c] = static_cast<double>(x[i * cols + c]) + y[i * cols + c];
            in[i] = as_int8(normed ? normalised(sum, norm, 1e-5) : sum, 32);
        }
        std::vector<double> want(n * rows), gated(n * rows);
        for (uint32_t r = 0; r < rows; r++) {
            for (int i = 0; i < 2; i++) row_values(t, m[i].raw, r, cols, w[i]);
            for (uint32_t i = 0; i < n; i++) {
                double one = bias[r], two = bias[rows + r];
                for (uint32_t c = 0; c < cols; c++) one += w[0][c] * in[i][c], two += w[1][c] * in[i][c];
                want[i * rows + r] = one, gated[i * rows + r] = silu(one) * two;
            }
        }
        FewArgs a{};
        a.seg[0] = m[0].segment(out.p, tails.p, db.p), a.seg[1] = m[1].segment(nullptr, nullptr, db.p + rows);
        a.tokens = count.p, a.acts = image.p, a.squares = p.scale, a.norm_parts = norm_parts, a.eps = p.eps, a.slab = out.n;
        for (uint32_t parts : {1u, 2u, 3u, 5u}) {
            const FewShape shape = few_shape(t, rows, k_tiles, FEW_PLAIN, parts, gpu.sms);
            if (!shape.grid) continue;
            std::vector<float> once;
            for (int time = 0; time < 2; time++) {
                out.poison(), tails.poison();
                launch_few(gpu, shape, cols, a);
                gpu.sync();
                auto got = out.read();
                const auto others = tails.read();
                for (size_t i = 0; i < (shape.parts - 1) * out.n; i++) got[i % out.n] += others[i];
                if (time == 0) report.line(name + (normed ? "norm, " : "") + std::to_string(shape.parts) + " parts", compare(got, want).value(), 5e-4), once = got;
                else report.line(name + "again the same", memcmp(got.data(), once.data(), got.size() * 4) == 0 ? 0 : 1, 0);
            }
        }
        if (t.id == Q6_K) continue;
        if (!normed) {
            const FewShape shape = few_shape(t, rows, k_tiles, FEW_ADDED, 1, gpu.sms);
            const auto add = random_floats(out.n, 65), weights = random_floats(rows, 66);
            const uint32_t pieces = up(rows, 32);
            Buffer<float> dadd(add), dweights(weights), sum(out.n), parts(8 * pieces);
            Buffer<uint8_t> normed_image(up(rows, 256) * FEW_BYTES);
            sum.poison(), parts.poison(), normed_image.poison();
            FewArgs b = a;
            b.x = dadd.p, b.x_out = sum.p, b.norm = dweights.p, b.image_out = normed_image.p, b.squares_out = parts.p, b.out_parts = pieces;
            launch_few(gpu, shape, cols, b);
            gpu.sync();
            const auto got = sum.read(), squares = parts.read();
            const auto bytes = normed_image.read();
            std::vector<double> sums(out.n);
            Error codes, factors;
            for (uint32_t i = 0; i < n; i++) {
                double wanted = 0, found = 0;
                for (uint32_t r = 0; r < rows; r++) {
                    const double x = sums[i * rows + r] = want[i * rows + r] + add[i * rows + r];
                    codes.add(few_value(bytes, i, r), x * weights[r]);
                    wanted += x * x;
                }
                for (uint32_t p = 0; p < pieces; p++) found += squares[i * pieces + p];
                factors.add(found, wanted);
            }
            report.line(name + "added", compare(got, sums).value(), 5e-4);
            report.line(name + "image of what was added", codes.value(), 1e-2);
            report.line(name + "sums of that image", few_sums(bytes, n, rows / 32 * 32), 1e-5);
            report.line(name + "squares", factors.value(), 1e-3);
        }
        if (const FewShape shape = few_shape(t, rows, k_tiles, FEW_GATED, 1, gpu.sms); shape.grid) {
            out.poison();
            launch_few(gpu, shape, cols, a);
            gpu.sync();
            report.line(name + (normed ? "norm, " : "") + "gated", compare(out.read(), gated).value(), 1.5e-3);
        }
    }
}

// The image of the norm of a sum in parts.
inline void check_pack(Gpu& gpu, Report& report, uint32_t cols, uint32_t tails, bool bf16, bool few = false, uint32_t blocks = 1) {
    const uint32_t n = 5, groups = 2, k_tiles = up(cols, 256);
    const size_t count = static_cast<size_t>(n) * cols;
    const auto x = random_floats(count, 80), y = random_floats(count * (1 + tails), 81), norm = random_floats(cols, 82);
    Buffer<float> dx(x), dy(y), dn(norm), x_out(count), scale(n * up(k_tiles, 2));
    Buffer<uint8_t> image(static_cast<size_t>(k_tiles) * 4 * groups * 1024);
    Buffer<uint32_t> rows(std::vector<uint32_t>{n});
    ActsArgs p{};
    p.rows = rows.p, p.x = dx.p, p.y = dy.p, p.y_tail = dy.p + count, p.slab = count, p.tails = tails, p.x_out = x_out.p, p.norm = dn.p;
    p.out = image.p, p.scale = scale.p, p.eps = 1e-5f, p.cols = cols, p.k_tiles = k_tiles, p.groups = groups;
    if (few) gpu.launch(gpu.kernel("acts", "pack_few"), dim3(n + 2, up(k_tiles, 2)), 64, 0, p);
    else gpu.launch(gpu.kernel("acts", bf16 ? "pack_parts_bf16" : "pack_parts_f16"), (n + 2) * blocks, 32 * std::min(14u, up(k_tiles, blocks)), 0, p, true, blocks);
    gpu.sync();
    const auto bytes = image.read();
    const auto factors = scale.read(), sums = x_out.read();
    Error sum_error, image_error;
    for (uint32_t r = 0; r < n; r++) {
        std::vector<double> sum(cols);
        for (uint32_t c = 0; c < cols; c++) {
            sum[c] = x[r * cols + c];
            for (uint32_t t = 0; t <= tails; t++) sum[c] += y[t * count + r * cols + c];
            sum_error.add(sums[r * cols + c], sum[c]);
        }
        auto want = normalised(sum, norm, 1e-5);
        if (few) {
            want = as_int8(want, 32);
            double piece = 0, squares = 0;
            for (uint32_t i = 0; i < up(k_tiles, 2); i++) squares += factors[r * up(k_tiles, 2) + i];
            const double factor = 1 / std::sqrt(squares / cols + 1e-5);
            for (uint32_t c = 0; c < cols; c++) {
                const double value = few_value(bytes, r, c);
                image_error.add(value * factor, want[c]);
                piece += value;
                if (c % 32 == 31 || c + 1 == cols) sum_error.add(few_sum(bytes, r, c / 32), piece), piece = 0;
            }
            continue;
        }
        for (uint32_t c = 0; c < cols; c++) {
            const uint32_t chunk = c % 64 / 2;
            uint16_t bits;
            memcpy(&bits, &bytes[((c / 256 * 4 + chunk / 8) * groups + r / 8) * 1024 + r % 8 * 128 + (chunk ^ r) % 8 * 16 + c % 256 / 64 * 4 + c % 2 * 2], 2);
            image_error.add(bf16 ? bf16_value(bits) : f16_value(bits) * factors[r], want[c]);
        }
    }
    const std::string name = std::string(few ? "int8 " : "") + "image of " + std::to_string(cols) + " columns, sums in " + std::to_string(1 + tails) + " parts";
    report.line(name, image_error.value(), bf16 ? 3e-3 : 4e-4);
    report.line(name + ", the sums", sum_error.value(), 1e-6);
}
