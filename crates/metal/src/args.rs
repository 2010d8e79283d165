//! Arguments of kernels. The structs here are the only source: [`header`] prints the C side of them.

/// Declares structs of four-byte fields that kernels take as `constant` arguments, with their C form.
macro_rules! args {
    ($($(#[doc = $doc:literal])* pub struct $name:ident { $($(#[doc = $field_doc:literal])* $field:ident: $ty:ident,)* })*) => {
        $(
            $(#[doc = $doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq)]
            pub struct $name { $($(#[doc = $field_doc])* pub $field: $ty,)* }

            // SAFETY: `repr(C)`, and every field has four bytes and any bit pattern: there is no padding.
            unsafe impl bytemuck::Zeroable for $name {}
            // SAFETY: as above.
            unsafe impl bytemuck::Pod for $name {}
        )*

        /// The C header of all structs, as it lies in `kernels/args.h`.
        pub fn header() -> String {
            let mut text = String::from(
                "// Arguments of kernels, printed from src/args.rs; a test compares.\n#pragma once\n#include \"common.h\"\n",
            );
            $(
                text.push('\n');
                $(text.push_str(concat!("//", $doc, "\n"));)*
                text.push_str(concat!("struct ", stringify!($name), " {\n"));
                $(
                    $(text.push_str(concat!("    //", $field_doc, "\n"));)*
                    text.push_str(concat!("    ", c_type!($ty), " ", stringify!($field), ";\n"));
                )*
                text.push_str("};\n");
            )*
            text
        }
    };
}

macro_rules! c_type {
    (u32) => {
        "uint"
    };
    (f32) => {
        "float"
    };
}

args! {
    /// Of `embed`.
    pub struct EmbedArgs {
        /// Elements of a row.
        cols: u32,
        /// Bytes of a row of the table.
        row_bytes: u32,
        /// Factor on every element.
        scale: f32,
    }
    /// Of `add_row`.
    pub struct AddRowArgs {
        /// Elements of a row.
        cols: u32,
        /// Bytes of a row of the table.
        row_bytes: u32,
        /// The row that is added.
        row: u32,
    }
    /// Of `add`, `mul`, `glu`, `activate_all`, `scale` and `softcap`.
    pub struct ElementArgs {
        /// Elements.
        count: u32,
        /// The factor or cap.
        factor: f32,
    }
    /// Of `glu_clamped`.
    pub struct ClampedGluArgs {
        /// Elements.
        count: u32,
        /// Slope of the sigmoid.
        alpha: f32,
        /// Largest gate, and largest distance of the other factor from 0.
        limit: f32,
    }
    /// Of `join` and `columns`.
    pub struct ColumnsArgs {
        /// Columns written.
        cols: u32,
        /// Columns of the first value, or of all from which some are taken.
        from: u32,
        /// The first of those that are taken.
        first: u32,
    }
    /// Of `lerp`.
    pub struct LerpArgs {
        /// Elements.
        count: u32,
        /// Elements of a row.
        cols: u32,
    }
    /// Of `bonus`.
    pub struct BonusArgs {
        /// Heads.
        heads: u32,
        /// Elements of a head.
        head_dim: u32,
    }
    /// Of `gather` and `mul_weight`.
    pub struct RowsArgs {
        /// Rows written.
        rows: u32,
        /// Columns.
        cols: u32,
    }
    /// Of `norm`.
    pub struct NormArgs {
        /// Elements of a group.
        cols: u32,
        /// Groups of a row.
        groups: u32,
        /// Added under the root; the least length.
        eps: f32,
    }
    /// Of `heads`.
    pub struct HeadsArgs {
        /// Query heads.
        q_heads: u32,
        /// Key heads.
        k_heads: u32,
        /// Value heads.
        v_heads: u32,
        /// Elements of a query or key head.
        k_dim: u32,
        /// Elements of a value head.
        v_dim: u32,
        /// Elements of a head that rotate.
        dims: u32,
        /// Factor on rotated elements.
        magnitude: f32,
        /// Added under the root of the norm.
        eps: f32,
    }
    /// Of `attention` and `attention_join`.
    pub struct AttentionArgs {
        /// Query heads.
        heads: u32,
        /// Key heads.
        kv_heads: u32,
        /// Threadgroups that share the positions of a row.
        splits: u32,
        /// Positions that a row looks back, itself included.
        window: u32,
        /// Factor on scores.
        scale: f32,
        /// Cap of scores.
        softcap: f32,
    }
    /// Where a token stands in its sequence, and where the sequence's blocks are listed.
    pub struct TokenSpan {
        /// First entry in the list of blocks.
        table: u32,
        /// Number of the first block listed.
        first: u32,
        /// Position of the token.
        position: u32,
        /// Positions of the sequence after the step.
        end: u32,
    }
    /// Tokens of one sequence that are next to each other.
    pub struct TokenTile {
        /// First token.
        first: u32,
        /// Tokens.
        count: u32,
    }
    /// Of `short_conv`.
    pub struct ShortConvArgs {
        /// Columns.
        channels: u32,
        /// Tokens that a result depends on.
        width: u32,
        /// First row of the weight and element of the bias.
        first: u32,
    }
    /// Of `shift`.
    pub struct ShiftArgs {
        /// Columns.
        channels: u32,
    }
    /// Of `wkv`.
    pub struct WkvArgs {
        /// Heads.
        heads: u32,
    }
    /// Of `scan`.
    pub struct ScanArgs {
        /// Heads.
        heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Parts of the heads that share B and C.
        groups: u32,
        /// Rates of a head: one, or one for each state.
        rates: u32,
    }
    /// Of `matvec`.
    pub struct MatvecArgs {
        /// Columns of the matrices.
        cols: u32,
        /// Rows of activations.
        tokens: u32,
        /// Bytes of a matrix row.
        row_bytes: u32,
        /// Rows of matrix 0.
        rows0: u32,
        /// Rows of matrix 1.
        rows1: u32,
        /// Rows of matrix 2.
        rows2: u32,
        /// Added under the root of the norm.
        eps: f32,
    }
    /// Of `matvec_experts`.
    pub struct ExpertArgs {
        /// Columns of a matrix.
        cols: u32,
        /// Experts of a row.
        used: u32,
        /// Rows of one expert's matrix.
        rows: u32,
        /// Bytes of a matrix row.
        row_bytes: u32,
    }
    /// Of `matmul`.
    pub struct MatmulArgs {
        /// Columns of the matrix.
        cols: u32,
        /// Rows of activations.
        tokens: u32,
        /// Rows of the matrix.
        rows: u32,
        /// Bytes of a matrix row.
        row_bytes: u32,
        /// Experts of a token.
        used: u32,
    }
    /// Of `sort_by_expert`.
    pub struct SortArgs {
        /// Experts.
        experts: u32,
        /// Tokens times the experts of each.
        slots: u32,
    }
    /// Of `route`.
    pub struct RouteArgs {
        /// Experts.
        experts: u32,
        /// Experts chosen.
        used: u32,
        /// Factor on the weights.
        scale: f32,
    }
    /// Of `combine`.
    pub struct CombineArgs {
        /// Columns of an expert's output.
        cols: u32,
        /// Experts of a row.
        used: u32,
    }
    /// Of the kernels in sampling.metal.
    pub struct PickArgs {
        /// Columns of the logits.
        vocab: u32,
        /// Candidates or logits of a row that are read.
        count: u32,
        /// Candidates that are written: by a threadgroup, or of a row.
        kept: u32,
        /// Changes of single logits.
        edits: u32,
    }
    /// How the token of a row is picked.
    pub struct PickRow {
        /// Divides positive and multiplies other logits of tokens seen.
        repeat_penalty: f32,
        /// Taken from a logit for each time its token was seen.
        frequency_penalty: f32,
        /// Taken from a logit whose token was seen.
        presence_penalty: f32,
        /// Candidates kept.
        top_k: u32,
        /// Lower half of the share of probability kept, an f64 number.
        top_p_low: u32,
        /// Upper half.
        top_p_high: u32,
        /// Added to the best logit to give the lowest.
        min_p_below: f32,
        /// Divides logits.
        temperature: f32,
        /// Lower half of the random number, an f64 number.
        uniform_low: u32,
        /// Upper half.
        uniform_high: u32,
    }
    /// A change of one logit.
    pub struct PickEdit {
        /// The row.
        row: u32,
        /// The token.
        token: u32,
        /// Added; negative infinity removes the token.
        bias: f32,
        /// Times that the token was seen.
        seen: u32,
    }
}
