//! Arguments of the fast products and of fast attention.

use super::{Mut, Ptr, RouteArgs, args};

args! {
    /// Rows of a file's matrix to tiles; `rows` is a multiple of 16 but in a matrix's last piece.
    RepackArgs {
        src: Ptr<u8>,
        dst: Mut<u8>,
        rows: u32,
        cols: u32,
    }

    /// One matrix of a product.
    Segment {
        tiles: Ptr<u8>,
        /// `[rows]`, of products of experts `[experts, rows]`; or null.
        bias: Ptr<f32>,
        /// `[rows]`; of batch products `[tokens, rows]`.
        out: Mut<f32>,
        /// `[rows]`, the second summand of `out` in split mode.
        tail: Mut<f32>,
        rows: u32,
        row_tiles: u32,
    }

    /// Products of one row.
    MatvecArgs {
        seg: [Segment; 3],
        /// Activations that are ready: `k_tiles * 384` bytes; of float weights f32 `[cols]`.
        acts: Ptr<u8>,
        /// Else `[cols]`.
        x: Ptr<f32>,
        /// `[cols]`, added to `x`; or null.
        y: Ptr<f32>,
        /// Second summand of `y`; or null.
        y_tail: Ptr<f32>,
        /// `x + y`, written by block 0; or null.
        x_out: Mut<f32>,
        /// Weights of the norm, `[cols]`.
        norm: Ptr<f32>,
        /// `[rows of segment 0]`, added to its result; or null.
        residual: Ptr<f32>,
        /// Gated products: int8 activations; null for f32 in `seg[0].out`.
        acts_out: Mut<u8>,
        /// Products of experts: the chosen ones, `[used]`, at most 32.
        experts: Ptr<i32>,
        /// What the results of experts are multiplied by, `[used]`: gated products multiply, the others have it for biases.
        weights: Ptr<f32>,
        /// From one expert's tiles to the next.
        expert_bytes: u64,
        eps: f32,
        /// ActInput.
        input: u32,
        segs: u32,
        cols: u32,
        k_tiles: u32,
        split: u32,
        gate: u32,
        /// Experts of the row.
        used: u32,
        /// Of the clamped unit of experts; the limit is 0 for other units.
        alpha: f32,
        limit: f32,
    }

    /// `x + y`, or its norm, as activations of products: int8 of one row, or an image of many.
    ActsArgs {
        /// Count of rows; or null for one.
        rows: Ptr<u32>,
        /// `[rows, cols]`
        x: Ptr<f32>,
        /// Added; or null.
        y: Ptr<f32>,
        /// Further summands of `y`: of int8 activations one or null, of images `tails`, each `slab` elements after the last.
        y_tail: Ptr<f32>,
        slab: u64,
        /// `x + y`; or null.
        x_out: Mut<f32>,
        /// Weights of the norm, `[cols]`; or null for none.
        norm: Ptr<f32>,
        out: Mut<u8>,
        /// Of 16-bit images: `[rows]`; of the int8 image the sums of squares of a norm, `[rows, blocks]`.
        scale: Mut<f32>,
        eps: f32,
        cols: u32,
        k_tiles: u32,
        /// Of 16-bit images: groups of 8 rows in the buffer.
        groups: u32,
        tails: u32,
        unused: u32,
    }

    /// Products of many rows with up to three matrices of one type, or the last of another.
    ProductArgs {
        seg: [Segment; 3],
        /// Count of rows.
        tokens: Ptr<u32>,
        /// The image.
        acts: Ptr<u8>,
        /// `[tokens]`; null for bf16.
        scale: Ptr<f32>,
        /// Parts of sums.
        partial: Mut<f32>,
        /// Zero before and after.
        counters: Mut<u32>,
        /// Of results in parts: elements from one part to the next, behind the first.
        slab: u64,
        segs: u32,
        k_tiles: u32,
        /// Groups of 8 rows in the image.
        groups: u32,
        /// Activation of gated products.
        gate: u32,
        /// Pieces of shared memory in flight.
        stages: u32,
        /// What sums are multiplied by, besides the scales of rows: undoes what keeps small weights out of f16's denormals.
        factor: f32,
        /// Parts in which results are left, the first in `out`, the others in `tail`; 0 for whole results.
        parts: u32,
        unused: u32,
    }

    /// Large products of up to 8 rows with a matrix, or with those of a gate.
    FewArgs {
        seg: [Segment; 2],
        /// Count of rows.
        tokens: Ptr<u32>,
        /// The int8 image.
        acts: Ptr<u8>,
        /// Sums of squares, from which rows have their factor, `[tokens, norm_parts]`; or null.
        squares: Ptr<f32>,
        /// What results are added to, `[tokens, rows]`: of the kernels that add.
        x: Ptr<f32>,
        /// The sums; or null.
        x_out: Mut<f32>,
        /// Weights of their norm, `[rows]`.
        norm: Ptr<f32>,
        /// The int8 image of their norm, but for the factors of rows.
        image_out: Mut<u8>,
        /// Their sums of squares, of 32 columns each, `[tokens, out_parts]`.
        squares_out: Mut<f32>,
        /// From one summand of results to the next, behind the first.
        slab: u64,
        k_tiles: u32,
        /// Tiles of columns that a block takes. Of each such part results have a summand: the first in `out`, the others in `tail`.
        part_tiles: u32,
        gate: u32,
        norm_parts: u32,
        norm_cols: u32,
        eps: f32,
        out_parts: u32,
        unused: u32,
    }

    /// Tokens of one expert, side by side in the image.
    ExpertTokenBlock {
        expert: u32,
        /// Row of the first token, a multiple of 8.
        first: u32,
        /// Row after the last one.
        end: u32,
    }

    /// Products of tokens that are sorted by expert, each with the matrices of its own.
    ExpertProductArgs {
        /// Its `tokens` is null.
        product: ProductArgs,
        /// `[blocks]`
        list: Ptr<ExpertTokenBlock>,
        /// Count of the list.
        blocks: Ptr<u32>,
        /// From one expert's tiles to the next.
        expert_bytes: u64,
        /// Of the clamped unit; the limit is 0 for other units.
        alpha: f32,
        limit: f32,
    }

    /// Chosen experts to lists of tokens by expert.
    SortArgs {
        /// Count of rows.
        rows: Ptr<u32>,
        /// `[rows, used]`
        ids: Ptr<i32>,
        /// `[rows, used]`, where a row goes for each of its experts.
        places: Mut<u32>,
        /// Blocks of `tokens` tokens at most.
        list: Mut<ExpertTokenBlock>,
        /// Blocks, and rows that have a place, whole groups of 8.
        counts: Mut<u32>,
        used: u32,
        experts: u32,
        /// Of a block.
        tokens: u32,
        unused: u32,
    }

    /// Rows to a 16-bit image, sorted by expert.
    SortedActsArgs {
        /// Count of rows.
        rows: Ptr<u32>,
        /// `[rows, cols]`
        x: Ptr<f32>,
        /// `[rows, copies]`, where each row goes; null for its own place, once.
        places: Ptr<u32>,
        out: Mut<u8>,
        /// By place.
        scale: Mut<f32>,
        cols: u32,
        k_tiles: u32,
        /// Groups of 8 rows in the image.
        groups: u32,
        copies: u32,
    }

    /// Weighted sums of expert outputs that are sorted by expert.
    CombinePlacesArgs {
        /// Count of rows.
        rows: Ptr<u32>,
        /// `[places, cols]`
        y: Ptr<f32>,
        /// `[rows, used]`
        places: Ptr<u32>,
        /// `[rows, used]`
        weights: Ptr<f32>,
        /// `[rows, cols]`
        out: Mut<f32>,
        cols: u32,
        used: u32,
    }

    /// Choice of experts for few rows, with the sum and the norm before and the router's product.
    RouterArgs {
        /// Its `scores` are written too.
        route: RouteArgs,
        /// `[rows, cols]`
        x: Ptr<f32>,
        /// Added; or null.
        y: Ptr<f32>,
        /// Further summands of `y`.
        y_tail: Ptr<f32>,
        /// Elements from one of them to the next.
        slab: u64,
        /// `x + y`; or null.
        x_out: Mut<f32>,
        /// Weights of the norm, `[cols]`.
        norm: Ptr<f32>,
        /// The norm of `x + y`.
        out: Mut<f32>,
        /// `[experts, cols]`
        matrix: Ptr<f32>,
        /// Of scores, `[experts]`; or null.
        bias: Ptr<f32>,
        /// `[rows, experts]`
        scores: Mut<f32>,
        /// `[rows]`, zero before and after.
        counters: Mut<u32>,
        eps: f32,
        cols: u32,
        /// Further summands.
        tails: u32,
        unused: u32,
    }

    /// Products with a matrix of f32.
    LinearF32Args {
        /// Count of rows.
        rows: Ptr<u32>,
        /// `[rows, cols]`
        x: Ptr<f32>,
        /// `[outs, cols]`
        matrix: Ptr<f32>,
        /// `[outs]`; or null.
        bias: Ptr<f32>,
        /// `[rows, outs]`
        out: Mut<f32>,
        cols: u32,
        outs: u32,
    }

    /// Attention of rows, each at its own position of its own sequence.
    AttendArgs {
        /// `[rows, heads * dim]`
        q: Ptr<f32>,
        /// Further summands of `q`, `k` and `v`: `tails`, each `slab` elements after the last.
        q_tail: Ptr<f32>,
        /// `[rows, kv_heads * dim]`, to be stored; null where the cache holds them.
        k: Ptr<f32>,
        k_tail: Ptr<f32>,
        v: Ptr<f32>,
        v_tail: Ptr<f32>,
        /// Weights of the norm of query heads, `[dim]`; or null.
        q_norm: Ptr<f32>,
        k_norm: Ptr<f32>,
        /// From `rope_table`; or null.
        rope: Ptr<f32>,
        /// `[heads]`; or null.
        sinks: Ptr<f32>,
        cache: Mut<u8>,
        /// `[rows, heads * dim]`
        out: Mut<f32>,
        /// The image of the result; or null.
        image: Mut<u8>,
        /// Parts of results, `[rows, groups, splits, 8, dim + 2]`.
        partial: Mut<f32>,
        /// `[rows, groups]`, zero before and after.
        counters: Mut<u32>,
        /// Count of rows.
        tokens: Ptr<u32>,
        positions: Ptr<i32>,
        sequences: Ptr<u32>,
        /// Number of the first block held, by sequence.
        first: Ptr<u32>,
        /// `[sequences, max_blocks]`
        blocks: Ptr<u32>,
        block_bytes: u64,
        /// Of values in a block.
        v_offset: u64,
        slab: u64,
        scale: f32,
        /// 0 for none.
        softcap: f32,
        eps: f32,
        heads: u32,
        kv_heads: u32,
        max_blocks: u32,
        /// Positions that a row looks back, itself included; 0 for all.
        window: u32,
        /// Rotated pairs of a head.
        pairs: u32,
        /// Whether neighbours rotate together; else elements half of the rotated ones apart.
        adjacent: u32,
        tails: u32,
        /// Groups of 8 rows in the image.
        groups: u32,
        /// Image.
        image_kind: u32,
    }

    /// Causal attention of tiles of rows.
    FlashArgs {
        /// `[rows, heads * dim]`
        q: Ptr<f32>,
        /// `[heads]`; or null.
        sinks: Ptr<f32>,
        cache: Ptr<u8>,
        /// `[rows, heads * dim]`
        out: Mut<f32>,
        /// First row and rows of each tile.
        tiles: Ptr<u32>,
        tile_count: Ptr<u32>,
        positions: Ptr<i32>,
        sequences: Ptr<u32>,
        /// Number of the first block held, by sequence.
        first: Ptr<u32>,
        /// `[sequences, max_blocks]`
        blocks: Ptr<u32>,
        block_bytes: u64,
        /// Of values in a block.
        v_offset: u64,
        scale: f32,
        /// 0 for none.
        softcap: f32,
        heads: u32,
        kv_heads: u32,
        max_blocks: u32,
        /// Positions that a row looks back, itself included; 0 for all.
        window: u32,
    }
}
