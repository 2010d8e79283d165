//! Arguments of the kernels for single operations.

use super::{Mut, Ptr, args};

args! {
    /// Counts of a step, at the start of its inputs on the device.
    StepCounts {
        /// Tokens.
        tokens: u32,
        /// Rows that are returned.
        outputs: u32,
        /// One more than the largest sequence number.
        sequences: u32,
        /// Tiles of rows.
        tiles: u32,
    }

    /// Rows of weights as they lie in the file.
    RawMatrix {
        data: Ptr<u8>,
        row_bytes: u64,
        /// Id of the type in GGUF.
        r#type: u32,
        cols: u32,
        /// Elements of a block.
        elements: u32,
        /// Bytes of a block.
        bytes: u32,
    }

    /// `to = from`
    InputsArgs {
        /// Memory of the host.
        from: Ptr<u64>,
        to: Mut<u64>,
        words: u32,
        unused: u32,
    }

    /// `out = table[ids] * scale + x`
    EmbedArgs {
        table: RawMatrix,
        rows: Ptr<u32>,
        /// `-1 - r` stands for token `r` of `picked`; or null: always the first row.
        ids: Ptr<i32>,
        picked: Ptr<i32>,
        /// Or null.
        x: Ptr<f32>,
        out: Mut<f32>,
        scale: f32,
        unused: u32,
    }

    /// How the token of a row is picked; see graph::Sampling.
    PickRow {
        uniform: f64,
        repeat: f32,
        frequency: f32,
        presence: f32,
        top_k: u32,
        top_p: f32,
        min_p_below: f32,
        temperature: f32,
        /// Of the row among all edits.
        first_edit: u32,
        edits: u32,
        unused: u32,
    }

    /// A change of a logit.
    PickEdit {
        token: u32,
        bias: f32,
        seen: u32,
    }

    /// Tokens of rows of logits.
    PickArgs {
        /// `[rows, cols]`
        logits: Mut<f32>,
        rows: Ptr<PickRow>,
        edits: Ptr<PickEdit>,
        /// Best candidates of each slice, or a bad logit, `[rows, slices, kept]`.
        parts: Mut<u64>,
        /// What became of a row, its token, its bad logit: `[rows, 3]`, in memory of the host.
        picked: Mut<u32>,
        /// `[rows]`
        tokens: Mut<i32>,
        cols: u32,
        /// Tokens of a slice, a power of two.
        slice: u32,
        slices: u32,
        /// Candidates of the row that keeps most.
        kept: u32,
        /// A power of two that is at least `slices * kept`.
        merged: u32,
        unused: u32,
    }

    /// `out = norm(x + other)`, and `sum = x + other` where there is another value.
    NormArgs {
        rows: Ptr<u32>,
        x: Ptr<f32>,
        /// Or null.
        other: Ptr<f32>,
        sum: Mut<f32>,
        /// Of a group; or null.
        weight: Ptr<f32>,
        /// Of a group; or null.
        bias: Ptr<f32>,
        out: Mut<f32>,
        cols: u32,
        groups: u32,
        eps: f32,
        /// In the order of graph::op::NormKind.
        kind: u32,
    }

    /// Cosines and sines of a step's positions, `[rows, pairs, 2]`.
    RopeTableArgs {
        rows: Ptr<u32>,
        /// `[rows]`, or with streams `[rows, 4]`.
        positions: Ptr<i32>,
        /// The stream that turns each pair; or null.
        streams: Ptr<u32>,
        /// Turns of a pair at position 1.
        turns: Ptr<f64>,
        out: Mut<f32>,
        pairs: u32,
        /// Factor on cosines and sines.
        magnitude: f32,
    }

    /// Rows of the embedding, and cosines and sines.
    EmbedTurnsArgs {
        embed: EmbedArgs,
        turns: RopeTableArgs,
        /// Blocks of a row of the embedding; those behind them make cosines and sines.
        blocks: u32,
        unused: u32,
    }

    /// Rotary position embedding; `out` may be `x`.
    RopeArgs {
        rows: Ptr<u32>,
        x: Ptr<f32>,
        /// From `rope_table`.
        table: Ptr<f32>,
        out: Mut<f32>,
        heads: u32,
        head_dim: u32,
        pairs: u32,
        /// Whether neighbours rotate together; else elements half of the rotated ones apart.
        adjacent: u32,
    }

    /// Keys and values `[rows, kv_heads, dim]` to their slots of a cache.
    StoreKvArgs {
        rows: Ptr<u32>,
        k: Ptr<f32>,
        v: Ptr<f32>,
        /// Slot of each token: 32 times its block, plus its place in it.
        slots: Ptr<u32>,
        cache: Mut<u8>,
        block_bytes: u64,
        kv_heads: u32,
        k_dim: u32,
        v_dim: u32,
        k_type: u32,
        v_type: u32,
        unused: u32,
    }

    /// Attention of queries `[rows, heads, k_dim]` to `out` `[rows, heads, v_dim]`.
    AttentionAnyArgs {
        rows: Ptr<u32>,
        q: Ptr<f32>,
        cache: Ptr<u8>,
        /// Of each head; or null.
        sinks: Ptr<f32>,
        positions: Ptr<i32>,
        /// Of each token.
        sequences: Ptr<u32>,
        /// Cached positions by sequence.
        lengths: Ptr<u32>,
        /// Number of the first block held, by sequence.
        first_blocks: Ptr<u32>,
        /// Physical blocks `[sequences, max_blocks]`.
        blocks: Ptr<u32>,
        out: Mut<f32>,
        block_bytes: u64,
        max_blocks: u32,
        heads: u32,
        kv_heads: u32,
        k_dim: u32,
        v_dim: u32,
        k_type: u32,
        v_type: u32,
        /// Positions that a row looks back, itself included; 0 for all.
        window: u32,
        causal: u32,
        scale: f32,
        /// 0 for none.
        softcap: f32,
        unused: u32,
    }

    /// Where a step's sequences find their states.
    StateTables {
        /// One more than the largest sequence number.
        sequences: Ptr<u32>,
        /// First row, by sequence.
        starts: Ptr<u32>,
        /// Rows, by sequence.
        counts: Ptr<u32>,
        /// Of each token.
        positions: Ptr<i32>,
        /// Number of the first block held, by sequence.
        first_blocks: Ptr<u32>,
        /// Physical blocks `[sequences, max_blocks]`.
        blocks: Ptr<u32>,
        max_blocks: u32,
        unused: u32,
    }

    /// Convolution over the last tokens; a state is `[width - 1, channels]`.
    ShortConvArgs {
        tables: StateTables,
        x: Ptr<f32>,
        /// `[channels, width]`
        weight: Ptr<f32>,
        /// Or null.
        bias: Ptr<f32>,
        states: Mut<f32>,
        out: Mut<f32>,
        channels: u32,
        width: u32,
    }

    /// Selective scan; a state is `[heads, head_dim, state]`.
    ScanArgs {
        tables: StateTables,
        x: Ptr<f32>,
        dt: Ptr<f32>,
        bc: Ptr<f32>,
        /// `[heads, rates]`
        a: Ptr<f32>,
        d: Ptr<f32>,
        states: Mut<f32>,
        out: Mut<f32>,
        heads: u32,
        head_dim: u32,
        state: u32,
        groups: u32,
        rates: u32,
        /// Threads of a channel.
        lanes: u32,
    }

    /// Rows of the tokens before; a state is `[channels]`.
    ShiftArgs {
        tables: StateTables,
        x: Ptr<f32>,
        states: Mut<f32>,
        out: Mut<f32>,
        channels: u32,
        unused: u32,
    }

    /// Recurrence of RWKV; a state is `[heads, head_dim, head_dim]`.
    WkvArgs {
        tables: StateTables,
        r: Ptr<f32>,
        k: Ptr<f32>,
        v: Ptr<f32>,
        d: Ptr<f32>,
        /// With the next, of the seventh rule; or null.
        a: Ptr<f32>,
        b: Ptr<f32>,
        /// Of the sixth rule; or null.
        first: Ptr<f32>,
        states: Mut<f32>,
        out: Mut<f32>,
        heads: u32,
        head_dim: u32,
    }

    /// Columns of two values side by side, or some of one.
    ColumnsArgs {
        /// Of `out`.
        rows: Ptr<u32>,
        x: Ptr<f32>,
        /// Or null.
        y: Ptr<f32>,
        out: Mut<f32>,
        cols: u32,
        /// Columns of `x`.
        from: u32,
        /// The first of them that is taken.
        first: u32,
        unused: u32,
    }

    /// `out = x + (y - x) * (m + row)`
    LerpArgs {
        rows: Ptr<u32>,
        x: Ptr<f32>,
        y: Ptr<f32>,
        /// Or null.
        m: Ptr<f32>,
        /// Or null.
        row: Ptr<f32>,
        out: Mut<f32>,
        cols: u32,
        unused: u32,
    }

    /// `v` by the score of each head, the sum of `a * b * weight` over its elements.
    BonusArgs {
        rows: Ptr<u32>,
        a: Ptr<f32>,
        b: Ptr<f32>,
        v: Ptr<f32>,
        weight: Ptr<f32>,
        out: Mut<f32>,
        heads: u32,
        head_dim: u32,
    }

    /// One operation on single elements.
    ElementwiseArgs {
        rows: Ptr<u32>,
        x: Ptr<f32>,
        /// Second operand, or a row of it; or null.
        y: Ptr<f32>,
        out: Mut<f32>,
        cols: u32,
        op: u32,
        activation: u32,
        /// Factor, cap, or slope of a sigmoid.
        factor: f32,
        /// Of the clamped unit.
        limit: f32,
        unused: u32,
    }

    /// `out = x[indices]`, elements of four bytes.
    GatherArgs {
        /// Of `out`.
        rows: Ptr<u32>,
        x: Ptr<u32>,
        indices: Ptr<i32>,
        out: Mut<u32>,
        cols: u32,
        unused: u32,
    }

    /// Chooses experts by scores `[rows, experts]`.
    RouteArgs {
        rows: Ptr<u32>,
        scores: Ptr<f32>,
        /// Of each expert; or null.
        bias: Ptr<f32>,
        ids: Mut<i32>,
        weights: Mut<f32>,
        experts: u32,
        used: u32,
        gating: u32,
        normalize: u32,
        scale: f32,
        unused: u32,
    }

    /// Weighted sum of `y` `[rows, used, cols]`.
    CombineArgs {
        rows: Ptr<u32>,
        y: Ptr<f32>,
        weights: Ptr<f32>,
        out: Mut<f32>,
        cols: u32,
        used: u32,
    }

    /// `out = x * matrix + bias`
    LinearAnyArgs {
        /// From the first row used on.
        matrix: RawMatrix,
        rows: Ptr<u32>,
        x: Ptr<f32>,
        /// Or null.
        bias: Ptr<f32>,
        out: Mut<f32>,
        outs: u32,
        unused: u32,
    }

    /// Products with the matrices of chosen experts: `out` is `[rows, used, outs]`.
    ExpertLinearAnyArgs {
        /// Of all experts.
        matrix: RawMatrix,
        rows: Ptr<u32>,
        x: Ptr<f32>,
        ids: Ptr<i32>,
        /// `[experts, outs]`; or null.
        bias: Ptr<f32>,
        out: Mut<f32>,
        outs: u32,
        used: u32,
        /// Whether all experts of a row read the same `x`.
        shared_input: u32,
        unused: u32,
    }

    /// Reads `bytes` bytes.
    ReadLimitArgs {
        data: Ptr<u8>,
        out: Mut<u64>,
        bytes: u64,
    }

    /// Multiplies matrices, `rounds` times eight.
    ProductLimitArgs {
        out: Mut<u64>,
        rounds: u32,
        unused: u32,
    }
}
