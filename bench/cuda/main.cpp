// Checks and times the fast CUDA kernels. See docs/cuda-performance.md for how to build and run it.
#include "chain.hpp"

static void check(Gpu& gpu, Report& report) {
    for (const Type& t : TYPES) {
        check_matvec(gpu, report, t, 3584);
        check_matvec(gpu, report, t, t.elements == 256 ? 512 : 576);
    }
    check_mixed(gpu, report, "q4_k", "q6_k");
    check_mixed(gpu, report, "q5_k", "q6_k");
    check_attention(gpu, report);
    for (uint32_t tails : {1, 3, 11, 13}) {
        for (uint32_t cols : {576, 3584, 10240}) {
            for (uint32_t blocks : {1, 2, 8}) check_pack(gpu, report, cols, tails, tails == 3, false, blocks);
            check_pack(gpu, report, cols, tails, false, true);
        }
    }
    for (const char* name : {"q4_k", "q5_k", "q6_k"}) {
        for (uint32_t n : {3, 8}) check_few(gpu, report, type_of(name), 1280, n), check_few(gpu, report, type_of(name), 9216, n);
    }
    ProductRoom room(gpu.sms, 1 << 16);
    for (const Type& t : TYPES) {
        for (uint32_t n : {3, 8, 13, 32, 64, 70}) check_products(gpu, report, room, t, t.elements == 256 ? 1280 : 1248, n, BATCH);
        for (uint32_t n : {5, 32, 50, 128, 300}) check_products(gpu, report, room, t, t.elements == 256 ? 1280 : 1248, n, HOPPER);
    }
    for (const char* name : {"q4_k", "q5_k"}) {
        for (uint32_t n : {5, 32, 50, 300}) check_products(gpu, report, room, type_of(name), 1280, n, HOPPER, &type_of("q6_k"));
        check_products(gpu, report, room, type_of(name), 1280, 8, BATCH, &type_of("q6_k"));
    }
}

// Single mat-vecs over copies that do not fit the cache.
static void time_matvec(Gpu& gpu) {
    struct Case {
        const char *name, *type;
        uint32_t rows, cols;
        bool gated, split;
    };
    const Case cases[] = {
        {"qkv", "q4_k", 4608, 3584, false, true},       {"o", "q4_k", 3584, 3584, false, true},
        {"gate, up", "q4_k", 18944, 3584, true, false}, {"down", "q4_k", 3584, 18944, false, true},
        {"down", "q6_k", 3584, 18944, false, true},     {"head", "q6_k", 152064, 3584, false, false},
        {"qkv", "q8_0", 6144, 4096, false, true},       {"o", "q8_0", 4096, 4096, false, true},
        {"gate, up", "q8_0", 14336, 4096, true, false}, {"down", "q8_0", 4096, 14336, false, true},
        {"gate, up", "q4_0", 11008, 4096, true, false}, {"down", "q4_0", 4096, 11008, false, true},
        {"gate, up", "bf16", 14336, 4096, true, false}, {"down", "bf16", 4096, 14336, false, true},
        {"down", "q5_k", 4096, 14336, false, true},     {"down", "mxfp4", 4096, 14336, false, true},
    };
    printf("\nmat-vec, copies beyond the cache, overlapping launches\n");
    for (const Case& c : cases) {
        const Type& t = type_of(c.type);
        const size_t bytes = static_cast<size_t>(up(c.rows, 16)) * up(c.cols, 256) * t.tile * (c.gated ? 2 : 1);
        const int copies = static_cast<int>(std::max<size_t>(2, (600u << 20) / bytes));
        std::vector<Matrix> m;
        for (int i = 0; i < copies * (c.gated ? 2 : 1); i++) m.push_back(fill_matrix(gpu, t, c.rows, c.cols));
        Buffer<float> x(random_floats(c.cols, 1)), out(c.rows), tail(c.rows);
        Buffer<uint8_t> acts(up(std::max(c.rows, c.cols), 256) * 384), acts_out(up(c.rows, 256) * 384);
        acts.zero();
        const cudaKernel_t kernel = gpu.kernel("matvec", std::string(c.gated ? "matvec_glu_" : "matvec_") + c.type);
        auto record = [&] {
            for (int i = 0; i < copies; i++) {
                MatvecArgs a{};
                a.seg[0] = m[c.gated ? 2 * i : i].segment(out.p, tail.p), a.segs = 1, a.split = c.split;
                if (c.gated) a.seg[1] = m[2 * i + 1].segment(nullptr), a.segs = 2;
                if (c.gated && !t.floats) a.acts_out = acts_out.p;
                a.x = x.p, a.acts = acts.p, a.cols = c.cols, a.k_tiles = up(c.cols, 256), a.input = t.floats ? ACTS_QUANTIZE : ACTS_READY;
                gpu.launch(kernel, std::min<uint32_t>(gpu.sms, up(c.rows, 16)), 512, matvec_shared(t, a.k_tiles), a);
            }
        };
        const double us = gpu.time(record, 9) / copies;
        printf("%-9s %-6s %7.2f MB %7.2f us %5.0f GB/s\n", c.name, c.type, bytes / 1e6, us, bytes / us / 1e3);
    }
}

static void time_chain(Gpu& gpu, const Shape& s) {
    if (!gpu.has("matvec", std::string("matvec_glu_") + s.type)) return;
    Model m(gpu, s, 64, 512);
    const double limit = m.weight_bytes / READ_RATE;
    m.set_rows(1);
    const double us = gpu.time([&] { m.decode(); }, 30, 5);
    printf("%-18s decode %7.1f us %6.0f tokens/s, %.2f of the limit (%.0f us), %.2f of llama.cpp\n", s.name, us, 1e6 / us, limit / us, limit, 1e6 / us / s.llama_cpp);
    for (uint32_t n : {8, 32, 64}) {
        const ProductShape shape = product_shape(type_of(s.type), n, false, n <= 8 ? BATCH : HOPPER);
        if (!gpu.has(shape.file, shape.name)) break;
        m.set_rows(n);
        const double t = gpu.time([&] { m.step(false, [&](uint32_t i) { m.attend(i, false, true); }); }, 9);
        const double p = gpu.time([&] { m.step(false, [](uint32_t) {}); }, 9);
        printf("%-18s batch %2u %7.1f us %6.0f tokens/s, %.2f of the read limit; without attention %.1f us\n", s.name, n, t, n * 1e6 / t, limit / t, p);
    }
}
// Each product of a layer and the other kernels of a step apart, over all layers in turn.
static void time_parts(Gpu& gpu, const Shape& s, uint32_t n, uint32_t depth) {
    Model m(gpu, s, n, depth);
    auto line = [&](const char* name, auto f, double operations) {
        const double us = gpu.time([&] { for (uint32_t i = 0; i < s.layers; i++) f(i); }, 5, 1) / s.layers;
        printf("  %-10s %7.2f us %5.0f TFLOP/s\n", name, us, operations * n / us / 1e6);
    };
    printf("%s, %u rows\n", s.name, n);
    const Type& t = type_of(s.type);
    line("pack", [&](uint32_t) { m.pack(m.x[0].p, m.y[0].p, m.x[1].p, s.dim, true, t); }, 0);
    line("q, k, v", [&](uint32_t i) { m.product({&m.layers[i].q, &m.layers[i].k, &m.layers[i].v}, {m.q[0].p, m.k[0].p, m.v[0].p}, false, n <= 64); }, 2.0 * s.dim * (m.q_cols + 2 * m.kv_cols));
    if (n <= 64) line("attend", [&](uint32_t i) { m.attend(i, false, true); }, 0);
    else line("flash", [&](uint32_t i) { m.flash(i); }, 2.0 * s.heads * s.head_dim * n);
    if (m.whole(t)) {
        line("o, norm", [&](uint32_t i) { m.added(m.layers[i].o, 0); }, 2.0 * s.dim * m.q_cols);
    } else {
        line("o", [&](uint32_t i) { m.product({&m.layers[i].o}, {m.y[0].p}, false, true); }, 2.0 * s.dim * m.q_cols);
        line("pack y", [&](uint32_t) { m.pack(m.x[0].p, m.y[0].p, m.x[1].p, s.dim, true, t); }, 0);
    }
    line("gate, up", [&](uint32_t i) { m.product({&m.layers[i].gate, &m.layers[i].up}, {m.h.p, nullptr}, true, false, m.whole(t)); }, 4.0 * s.dim * s.ff);
    line("pack h", [&](uint32_t i) { m.pack(m.h.p, nullptr, nullptr, s.ff, false, t, m.whole(*m.layers[i].down.type)); }, 0);
    line("down", [&](uint32_t i) { m.product({&m.layers[i].down}, {m.y[0].p}, false, true, m.whole(*m.layers[i].down.type)); }, 2.0 * s.dim * s.ff);
}
static void time_depth(Gpu& gpu) {
    for (uint32_t depth : {2048, 8192}) {
        Model m(gpu, SHAPES[0], 1, depth);
        const double us = gpu.time([&] { m.decode(); }, 20, 5), attention = gpu.time([&] { for (uint32_t i = 0; i < m.s.layers; i++) m.attend(i, true); }, 20, 5);
        printf("%-18s depth %u: %.1f us %.0f tokens/s; attention alone %.2f us a layer\n", m.s.name, depth, us, 1e6 / us, attention / m.s.layers);
    }
}
static void time_prefill(Gpu& gpu, const Shape& s) {
    Model m(gpu, s, 2048, 2047);
    for (uint32_t n : {512, 2048}) {
        const ProductShape shape = product_shape(type_of(s.type), n, false, n <= 8 ? BATCH : HOPPER);
        if (!gpu.has(shape.file, shape.name)) return;
        m.set_rows(n);
        const double us = gpu.time([&] { m.step(true, [&](uint32_t i) { m.flash(i); }); }, 7, 2);
        const double attention = gpu.time([&] { for (uint32_t i = 0; i < s.layers; i++) m.flash(i); }, 5, 1);
        const double floor = m.operations() * n / BF16_RATE;
        printf("%-18s pp%-4u %8.1f us %6.0f tokens/s, %.0f TFLOP/s, %.2f of the bf16 rate; attention %.1f us\n", s.name, n, us, n * 1e6 / us, m.operations() * n / us / 1e6, floor / us, attention);
    }
}

// Each kernel of two layers once, for a profiler.
static void profile(Gpu& gpu) {
    Shape s = SHAPES[0];
    s.layers = 2, s.vocab = 4096;
    Model m(gpu, s, 512, 512);
    m.set_rows(1);
    m.decode();
    gpu.sync();
    for (uint32_t n : {8, 64}) {
        m.set_rows(n);
        m.step(false, [&](uint32_t i) { m.attend(i, false, true); });
        gpu.sync();
    }
    m.set_rows(512);
    m.step(true, [&](uint32_t i) { m.flash(i); });
    gpu.sync();
}

int main(int argc, char** argv) {
    if (argc < 3) {
        printf("usage: kernels FOLDER-OF-CUBINS check|decode|matvec|chain|parts|depth|prefill|profile ...\n");
        return 2;
    }
    setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
    Gpu gpu(argv[1]);
    Report report;
    for (int i = 2; i < argc; i++) {
        const std::string what = argv[i];
        if (what == "check") {
            check(gpu, report);
            printf("%d checks, %d wrong, %d kernels not built\n", report.checks, report.wrong, report.missing);
        }
        if (what == "matvec") time_matvec(gpu);
        if (what == "decode") {
            for (int k = 0; k < 2; k++) {
                Model m(gpu, SHAPES[0], 1, 512);
                const double us = gpu.time([&] { m.decode(); }, 40, 5);
                printf("decode %.1f us %.0f tokens/s\n", us, 1e6 / us);
            }
        }
        if (what == "chain") {
            for (const Shape& s : SHAPES) time_chain(gpu, s);
        }
        if (what == "parts") {
            for (uint32_t n : {8, 32, 64, 512}) time_parts(gpu, SHAPES[0], n, n > 64 ? 2047 : 512);
        }
        if (what == "depth") time_depth(gpu);
        if (what == "profile") profile(gpu);
        if (what == "prefill") {
            for (const Shape& s : SHAPES) time_prefill(gpu, s);
        }
    }
    return report.wrong || report.missing ? 1 : 0;
}
