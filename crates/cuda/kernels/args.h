// Arguments of kernels, written by the tests of src/args; do not edit by hand.
#pragma once
#include <stdint.h>

// Counts of a step, at the start of its inputs on the device.
struct StepCounts {
    // Tokens.
    uint32_t tokens;
    // Rows that are returned.
    uint32_t outputs;
    // One more than the largest sequence number.
    uint32_t sequences;
    // Tiles of rows.
    uint32_t tiles;
};
static_assert(sizeof(StepCounts) == 16, "StepCounts");

// Rows of weights as they lie in the file.
struct RawMatrix {
    const uint8_t* data;
    uint64_t row_bytes;
    // Id of the type in GGUF.
    uint32_t type;
    uint32_t cols;
    // Elements of a block.
    uint32_t elements;
    // Bytes of a block.
    uint32_t bytes;
};
static_assert(sizeof(RawMatrix) == 32, "RawMatrix");

// `to = from`
struct InputsArgs {
    // Memory of the host.
    const uint64_t* from;
    uint64_t* to;
    uint32_t words;
    uint32_t unused;
};
static_assert(sizeof(InputsArgs) == 24, "InputsArgs");

// `out = table[ids] * scale + x`
struct EmbedArgs {
    RawMatrix table;
    const uint32_t* rows;
    // `-1 - r` stands for token `r` of `picked`; or null: always the first row.
    const int32_t* ids;
    const int32_t* picked;
    // Or null.
    const float* x;
    float* out;
    float scale;
    uint32_t unused;
};
static_assert(sizeof(EmbedArgs) == 80, "EmbedArgs");

// How the token of a row is picked; see graph::Sampling.
struct PickRow {
    double uniform;
    float repeat;
    float frequency;
    float presence;
    uint32_t top_k;
    float top_p;
    float min_p_below;
    float temperature;
    // Of the row among all edits.
    uint32_t first_edit;
    uint32_t edits;
    uint32_t unused;
};
static_assert(sizeof(PickRow) == 48, "PickRow");

// A change of a logit.
struct PickEdit {
    uint32_t token;
    float bias;
    uint32_t seen;
};
static_assert(sizeof(PickEdit) == 12, "PickEdit");

// Tokens of rows of logits.
struct PickArgs {
    // `[rows, cols]`
    float* logits;
    const PickRow* rows;
    const PickEdit* edits;
    // Best candidates of each slice, or a bad logit, `[rows, slices, kept]`.
    uint64_t* parts;
    // What became of a row, its token, its bad logit: `[rows, 3]`, in memory of the host.
    uint32_t* picked;
    // `[rows]`
    int32_t* tokens;
    uint32_t cols;
    // Tokens of a slice, a power of two.
    uint32_t slice;
    uint32_t slices;
    // Candidates of the row that keeps most.
    uint32_t kept;
    // A power of two that is at least `slices * kept`.
    uint32_t merged;
    uint32_t unused;
};
static_assert(sizeof(PickArgs) == 72, "PickArgs");

// `out = norm(x + other)`, and `sum = x + other` where there is another value.
struct NormArgs {
    const uint32_t* rows;
    const float* x;
    // Or null.
    const float* other;
    float* sum;
    // Of a group; or null.
    const float* weight;
    // Of a group; or null.
    const float* bias;
    float* out;
    uint32_t cols;
    uint32_t groups;
    float eps;
    // In the order of graph::op::NormKind.
    uint32_t kind;
};
static_assert(sizeof(NormArgs) == 72, "NormArgs");

// Cosines and sines of a step's positions, `[rows, pairs, 2]`.
struct RopeTableArgs {
    const uint32_t* rows;
    // `[rows]`, or with streams `[rows, 4]`.
    const int32_t* positions;
    // The stream that turns each pair; or null.
    const uint32_t* streams;
    // Turns of a pair at position 1.
    const double* turns;
    float* out;
    uint32_t pairs;
    // Factor on cosines and sines.
    float magnitude;
};
static_assert(sizeof(RopeTableArgs) == 48, "RopeTableArgs");

// Rows of the embedding, and cosines and sines.
struct EmbedTurnsArgs {
    EmbedArgs embed;
    RopeTableArgs turns;
    // Blocks of a row of the embedding; those behind them make cosines and sines.
    uint32_t blocks;
    uint32_t unused;
};
static_assert(sizeof(EmbedTurnsArgs) == 136, "EmbedTurnsArgs");

// Rotary position embedding; `out` may be `x`.
struct RopeArgs {
    const uint32_t* rows;
    const float* x;
    // From `rope_table`.
    const float* table;
    float* out;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t pairs;
    // Whether neighbours rotate together; else elements half of the rotated ones apart.
    uint32_t adjacent;
};
static_assert(sizeof(RopeArgs) == 48, "RopeArgs");

// Keys and values `[rows, kv_heads, dim]` to their slots of a cache.
struct StoreKvArgs {
    const uint32_t* rows;
    const float* k;
    const float* v;
    // Slot of each token: 32 times its block, plus its place in it.
    const uint32_t* slots;
    uint8_t* cache;
    uint64_t block_bytes;
    uint32_t kv_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t k_type;
    uint32_t v_type;
    uint32_t unused;
};
static_assert(sizeof(StoreKvArgs) == 72, "StoreKvArgs");

// Attention of queries `[rows, heads, k_dim]` to `out` `[rows, heads, v_dim]`.
struct AttentionAnyArgs {
    const uint32_t* rows;
    const float* q;
    const uint8_t* cache;
    // Of each head; or null.
    const float* sinks;
    const int32_t* positions;
    // Of each token.
    const uint32_t* sequences;
    // Cached positions by sequence.
    const uint32_t* lengths;
    // Number of the first block held, by sequence.
    const uint32_t* first_blocks;
    // Physical blocks `[sequences, max_blocks]`.
    const uint32_t* blocks;
    float* out;
    uint64_t block_bytes;
    uint32_t max_blocks;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t k_type;
    uint32_t v_type;
    // Positions that a row looks back, itself included; 0 for all.
    uint32_t window;
    uint32_t causal;
    float scale;
    // 0 for none.
    float softcap;
    uint32_t unused;
};
static_assert(sizeof(AttentionAnyArgs) == 136, "AttentionAnyArgs");

// Where a step's sequences find their states.
struct StateTables {
    // One more than the largest sequence number.
    const uint32_t* sequences;
    // First row, by sequence.
    const uint32_t* starts;
    // Rows, by sequence.
    const uint32_t* counts;
    // Of each token.
    const int32_t* positions;
    // Number of the first block held, by sequence.
    const uint32_t* first_blocks;
    // Physical blocks `[sequences, max_blocks]`.
    const uint32_t* blocks;
    uint32_t max_blocks;
    uint32_t unused;
};
static_assert(sizeof(StateTables) == 56, "StateTables");

// Convolution over the last tokens; a state is `[width - 1, channels]`.
struct ShortConvArgs {
    StateTables tables;
    const float* x;
    // `[channels, width]`
    const float* weight;
    // Or null.
    const float* bias;
    float* states;
    float* out;
    uint32_t channels;
    uint32_t width;
};
static_assert(sizeof(ShortConvArgs) == 104, "ShortConvArgs");

// Selective scan; a state is `[heads, head_dim, state]`.
struct ScanArgs {
    StateTables tables;
    const float* x;
    const float* dt;
    const float* bc;
    // `[heads, rates]`
    const float* a;
    const float* d;
    float* states;
    float* out;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t state;
    uint32_t groups;
    uint32_t rates;
    // Threads of a channel.
    uint32_t lanes;
};
static_assert(sizeof(ScanArgs) == 136, "ScanArgs");

// Rows of the tokens before; a state is `[channels]`.
struct ShiftArgs {
    StateTables tables;
    const float* x;
    float* states;
    float* out;
    uint32_t channels;
    uint32_t unused;
};
static_assert(sizeof(ShiftArgs) == 88, "ShiftArgs");

// Recurrence of RWKV; a state is `[heads, head_dim, head_dim]`.
struct WkvArgs {
    StateTables tables;
    const float* r;
    const float* k;
    const float* v;
    const float* d;
    // With the next, of the seventh rule; or null.
    const float* a;
    const float* b;
    // Of the sixth rule; or null.
    const float* first;
    float* states;
    float* out;
    uint32_t heads;
    uint32_t head_dim;
};
static_assert(sizeof(WkvArgs) == 136, "WkvArgs");

// Columns of two values side by side, or some of one.
struct ColumnsArgs {
    // Of `out`.
    const uint32_t* rows;
    const float* x;
    // Or null.
    const float* y;
    float* out;
    uint32_t cols;
    // Columns of `x`.
    uint32_t from;
    // The first of them that is taken.
    uint32_t first;
    uint32_t unused;
};
static_assert(sizeof(ColumnsArgs) == 48, "ColumnsArgs");

// `out = x + (y - x) * (m + row)`
struct LerpArgs {
    const uint32_t* rows;
    const float* x;
    const float* y;
    // Or null.
    const float* m;
    // Or null.
    const float* row;
    float* out;
    uint32_t cols;
    uint32_t unused;
};
static_assert(sizeof(LerpArgs) == 56, "LerpArgs");

// `v` by the score of each head, the sum of `a * b * weight` over its elements.
struct BonusArgs {
    const uint32_t* rows;
    const float* a;
    const float* b;
    const float* v;
    const float* weight;
    float* out;
    uint32_t heads;
    uint32_t head_dim;
};
static_assert(sizeof(BonusArgs) == 56, "BonusArgs");

// One operation on single elements.
struct ElementwiseArgs {
    const uint32_t* rows;
    const float* x;
    // Second operand, or a row of it; or null.
    const float* y;
    float* out;
    uint32_t cols;
    uint32_t op;
    uint32_t activation;
    // Factor, cap, or slope of a sigmoid.
    float factor;
    // Of the clamped unit.
    float limit;
    uint32_t unused;
};
static_assert(sizeof(ElementwiseArgs) == 56, "ElementwiseArgs");

// `out = x[indices]`, elements of four bytes.
struct GatherArgs {
    // Of `out`.
    const uint32_t* rows;
    const uint32_t* x;
    const int32_t* indices;
    uint32_t* out;
    uint32_t cols;
    uint32_t unused;
};
static_assert(sizeof(GatherArgs) == 40, "GatherArgs");

// Chooses experts by scores `[rows, experts]`.
struct RouteArgs {
    const uint32_t* rows;
    const float* scores;
    // Of each expert; or null.
    const float* bias;
    int32_t* ids;
    float* weights;
    uint32_t experts;
    uint32_t used;
    uint32_t gating;
    uint32_t normalize;
    float scale;
    uint32_t unused;
};
static_assert(sizeof(RouteArgs) == 64, "RouteArgs");

// Weighted sum of `y` `[rows, used, cols]`.
struct CombineArgs {
    const uint32_t* rows;
    const float* y;
    const float* weights;
    float* out;
    uint32_t cols;
    uint32_t used;
};
static_assert(sizeof(CombineArgs) == 40, "CombineArgs");

// `out = x * matrix + bias`
struct LinearAnyArgs {
    // From the first row used on.
    RawMatrix matrix;
    const uint32_t* rows;
    const float* x;
    // Or null.
    const float* bias;
    float* out;
    uint32_t outs;
    uint32_t unused;
};
static_assert(sizeof(LinearAnyArgs) == 72, "LinearAnyArgs");

// Products with the matrices of chosen experts: `out` is `[rows, used, outs]`.
struct ExpertLinearAnyArgs {
    // Of all experts.
    RawMatrix matrix;
    const uint32_t* rows;
    const float* x;
    const int32_t* ids;
    // `[experts, outs]`; or null.
    const float* bias;
    float* out;
    uint32_t outs;
    uint32_t used;
    // Whether all experts of a row read the same `x`.
    uint32_t shared_input;
    uint32_t unused;
};
static_assert(sizeof(ExpertLinearAnyArgs) == 88, "ExpertLinearAnyArgs");

// Reads `bytes` bytes.
struct ReadLimitArgs {
    const uint8_t* data;
    uint64_t* out;
    uint64_t bytes;
};
static_assert(sizeof(ReadLimitArgs) == 24, "ReadLimitArgs");

// Multiplies matrices, `rounds` times eight.
struct ProductLimitArgs {
    uint64_t* out;
    uint32_t rounds;
    uint32_t unused;
};
static_assert(sizeof(ProductLimitArgs) == 16, "ProductLimitArgs");

// Rows of a file's matrix to tiles; `rows` is a multiple of 16 but in a matrix's last piece.
struct RepackArgs {
    const uint8_t* src;
    uint8_t* dst;
    uint32_t rows;
    uint32_t cols;
};
static_assert(sizeof(RepackArgs) == 24, "RepackArgs");

// One matrix of a product.
struct Segment {
    const uint8_t* tiles;
    // `[rows]`, of products of experts `[experts, rows]`; or null.
    const float* bias;
    // `[rows]`; of batch products `[tokens, rows]`.
    float* out;
    // `[rows]`, the second summand of `out` in split mode.
    float* tail;
    uint32_t rows;
    uint32_t row_tiles;
};
static_assert(sizeof(Segment) == 40, "Segment");

// Products of one row.
struct MatvecArgs {
    Segment seg[3];
    // Activations that are ready: `k_tiles * 384` bytes; of float weights f32 `[cols]`.
    const uint8_t* acts;
    // Else `[cols]`.
    const float* x;
    // `[cols]`, added to `x`; or null.
    const float* y;
    // Second summand of `y`; or null.
    const float* y_tail;
    // `x + y`, written by block 0; or null.
    float* x_out;
    // Weights of the norm, `[cols]`.
    const float* norm;
    // `[rows of segment 0]`, added to its result; or null.
    const float* residual;
    // Gated products: int8 activations; null for f32 in `seg[0].out`.
    uint8_t* acts_out;
    // Products of experts: the chosen ones, `[used]`, at most 32.
    const int32_t* experts;
    // What the results of experts are multiplied by, `[used]`: gated products multiply, the others have it for biases.
    const float* weights;
    // From one expert's tiles to the next.
    uint64_t expert_bytes;
    float eps;
    // ActInput.
    uint32_t input;
    uint32_t segs;
    uint32_t cols;
    uint32_t k_tiles;
    uint32_t split;
    uint32_t gate;
    // Experts of the row.
    uint32_t used;
    // Of the clamped unit of experts; the limit is 0 for other units.
    float alpha;
    float limit;
};
static_assert(sizeof(MatvecArgs) == 248, "MatvecArgs");

// `x + y`, or its norm, as activations of products: int8 of one row, or an image of many.
struct ActsArgs {
    // Count of rows; or null for one.
    const uint32_t* rows;
    // `[rows, cols]`
    const float* x;
    // Added; or null.
    const float* y;
    // Further summands of `y`: of int8 activations one or null, of images `tails`, each `slab` elements after the last.
    const float* y_tail;
    uint64_t slab;
    // `x + y`; or null.
    float* x_out;
    // Weights of the norm, `[cols]`; or null for none.
    const float* norm;
    uint8_t* out;
    // Of 16-bit images: `[rows]`; of the int8 image the sums of squares of a norm, `[rows, blocks]`.
    float* scale;
    float eps;
    uint32_t cols;
    uint32_t k_tiles;
    // Of 16-bit images: groups of 8 rows in the buffer.
    uint32_t groups;
    uint32_t tails;
    uint32_t unused;
};
static_assert(sizeof(ActsArgs) == 96, "ActsArgs");

// Products of many rows with up to three matrices of one type, or the last of another.
struct ProductArgs {
    Segment seg[3];
    // Count of rows.
    const uint32_t* tokens;
    // The image.
    const uint8_t* acts;
    // `[tokens]`; null for bf16.
    const float* scale;
    // Parts of sums.
    float* partial;
    // Zero before and after.
    uint32_t* counters;
    // Of results in parts: elements from one part to the next, behind the first.
    uint64_t slab;
    uint32_t segs;
    uint32_t k_tiles;
    // Groups of 8 rows in the image.
    uint32_t groups;
    // Activation of gated products.
    uint32_t gate;
    // Pieces of shared memory in flight.
    uint32_t stages;
    // What sums are multiplied by, besides the scales of rows: undoes what keeps small weights out of f16's denormals.
    float factor;
    // Parts in which results are left, the first in `out`, the others in `tail`; 0 for whole results.
    uint32_t parts;
    uint32_t unused;
};
static_assert(sizeof(ProductArgs) == 200, "ProductArgs");

// Large products of up to 8 rows with a matrix, or with those of a gate.
struct FewArgs {
    Segment seg[2];
    // Count of rows.
    const uint32_t* tokens;
    // The int8 image.
    const uint8_t* acts;
    // Sums of squares, from which rows have their factor, `[tokens, norm_parts]`; or null.
    const float* squares;
    // What results are added to, `[tokens, rows]`: of the kernels that add.
    const float* x;
    // The sums; or null.
    float* x_out;
    // Weights of their norm, `[rows]`.
    const float* norm;
    // The int8 image of their norm, but for the factors of rows.
    uint8_t* image_out;
    // Their sums of squares, of 32 columns each, `[tokens, out_parts]`.
    float* squares_out;
    // From one summand of results to the next, behind the first.
    uint64_t slab;
    uint32_t k_tiles;
    // Tiles of columns that a block takes. Of each such part results have a summand: the first in `out`, the others in `tail`.
    uint32_t part_tiles;
    uint32_t gate;
    uint32_t norm_parts;
    uint32_t norm_cols;
    float eps;
    uint32_t out_parts;
    uint32_t unused;
};
static_assert(sizeof(FewArgs) == 184, "FewArgs");

// Tokens of one expert, side by side in the image.
struct ExpertTokenBlock {
    uint32_t expert;
    // Row of the first token, a multiple of 8.
    uint32_t first;
    // Row after the last one.
    uint32_t end;
};
static_assert(sizeof(ExpertTokenBlock) == 12, "ExpertTokenBlock");

// Products of tokens that are sorted by expert, each with the matrices of its own.
struct ExpertProductArgs {
    // Its `tokens` is null.
    ProductArgs product;
    // `[blocks]`
    const ExpertTokenBlock* list;
    // Count of the list.
    const uint32_t* blocks;
    // From one expert's tiles to the next.
    uint64_t expert_bytes;
    // Of the clamped unit; the limit is 0 for other units.
    float alpha;
    float limit;
};
static_assert(sizeof(ExpertProductArgs) == 232, "ExpertProductArgs");

// Chosen experts to lists of tokens by expert.
struct SortArgs {
    // Count of rows.
    const uint32_t* rows;
    // `[rows, used]`
    const int32_t* ids;
    // `[rows, used]`, where a row goes for each of its experts.
    uint32_t* places;
    // Blocks of `tokens` tokens at most.
    ExpertTokenBlock* list;
    // Blocks, and rows that have a place, whole groups of 8.
    uint32_t* counts;
    uint32_t used;
    uint32_t experts;
    // Of a block.
    uint32_t tokens;
    uint32_t unused;
};
static_assert(sizeof(SortArgs) == 56, "SortArgs");

// Rows to a 16-bit image, sorted by expert.
struct SortedActsArgs {
    // Count of rows.
    const uint32_t* rows;
    // `[rows, cols]`
    const float* x;
    // `[rows, copies]`, where each row goes; null for its own place, once.
    const uint32_t* places;
    uint8_t* out;
    // By place.
    float* scale;
    uint32_t cols;
    uint32_t k_tiles;
    // Groups of 8 rows in the image.
    uint32_t groups;
    uint32_t copies;
};
static_assert(sizeof(SortedActsArgs) == 56, "SortedActsArgs");

// Weighted sums of expert outputs that are sorted by expert.
struct CombinePlacesArgs {
    // Count of rows.
    const uint32_t* rows;
    // `[places, cols]`
    const float* y;
    // `[rows, used]`
    const uint32_t* places;
    // `[rows, used]`
    const float* weights;
    // `[rows, cols]`
    float* out;
    uint32_t cols;
    uint32_t used;
};
static_assert(sizeof(CombinePlacesArgs) == 48, "CombinePlacesArgs");

// Choice of experts for few rows, with the sum and the norm before and the router's product.
struct RouterArgs {
    // Its `scores` are written too.
    RouteArgs route;
    // `[rows, cols]`
    const float* x;
    // Added; or null.
    const float* y;
    // Further summands of `y`.
    const float* y_tail;
    // Elements from one of them to the next.
    uint64_t slab;
    // `x + y`; or null.
    float* x_out;
    // Weights of the norm, `[cols]`.
    const float* norm;
    // The norm of `x + y`.
    float* out;
    // `[experts, cols]`
    const float* matrix;
    // Of scores, `[experts]`; or null.
    const float* bias;
    // `[rows, experts]`
    float* scores;
    // `[rows]`, zero before and after.
    uint32_t* counters;
    float eps;
    uint32_t cols;
    // Further summands.
    uint32_t tails;
    uint32_t unused;
};
static_assert(sizeof(RouterArgs) == 168, "RouterArgs");

// Products with a matrix of f32.
struct LinearF32Args {
    // Count of rows.
    const uint32_t* rows;
    // `[rows, cols]`
    const float* x;
    // `[outs, cols]`
    const float* matrix;
    // `[outs]`; or null.
    const float* bias;
    // `[rows, outs]`
    float* out;
    uint32_t cols;
    uint32_t outs;
};
static_assert(sizeof(LinearF32Args) == 48, "LinearF32Args");

// Attention of rows, each at its own position of its own sequence.
struct AttendArgs {
    // `[rows, heads * dim]`
    const float* q;
    // Further summands of `q`, `k` and `v`: `tails`, each `slab` elements after the last.
    const float* q_tail;
    // `[rows, kv_heads * dim]`, to be stored; null where the cache holds them.
    const float* k;
    const float* k_tail;
    const float* v;
    const float* v_tail;
    // Weights of the norm of query heads, `[dim]`; or null.
    const float* q_norm;
    const float* k_norm;
    // From `rope_table`; or null.
    const float* rope;
    // `[heads]`; or null.
    const float* sinks;
    uint8_t* cache;
    // `[rows, heads * dim]`
    float* out;
    // The image of the result; or null.
    uint8_t* image;
    // Parts of results, `[rows, groups, splits, 8, dim + 2]`.
    float* partial;
    // `[rows, groups]`, zero before and after.
    uint32_t* counters;
    // Count of rows.
    const uint32_t* tokens;
    const int32_t* positions;
    const uint32_t* sequences;
    // Number of the first block held, by sequence.
    const uint32_t* first;
    // `[sequences, max_blocks]`
    const uint32_t* blocks;
    uint64_t block_bytes;
    // Of values in a block.
    uint64_t v_offset;
    uint64_t slab;
    float scale;
    // 0 for none.
    float softcap;
    float eps;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t max_blocks;
    // Positions that a row looks back, itself included; 0 for all.
    uint32_t window;
    // Rotated pairs of a head.
    uint32_t pairs;
    // Whether neighbours rotate together; else elements half of the rotated ones apart.
    uint32_t adjacent;
    uint32_t tails;
    // Groups of 8 rows in the image.
    uint32_t groups;
    // Image.
    uint32_t image_kind;
};
static_assert(sizeof(AttendArgs) == 232, "AttendArgs");

// Causal attention of tiles of rows.
struct FlashArgs {
    // `[rows, heads * dim]`
    const float* q;
    // `[heads]`; or null.
    const float* sinks;
    const uint8_t* cache;
    // `[rows, heads * dim]`
    float* out;
    // First row and rows of each tile.
    const uint32_t* tiles;
    const uint32_t* tile_count;
    const int32_t* positions;
    const uint32_t* sequences;
    // Number of the first block held, by sequence.
    const uint32_t* first;
    // `[sequences, max_blocks]`
    const uint32_t* blocks;
    uint64_t block_bytes;
    // Of values in a block.
    uint64_t v_offset;
    float scale;
    // 0 for none.
    float softcap;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t max_blocks;
    // Positions that a row looks back, itself included; 0 for all.
    uint32_t window;
};
static_assert(sizeof(FlashArgs) == 120, "FlashArgs");
