// Arguments of kernels, printed from src/args.rs; a test compares.
#pragma once
#include "common.h"

// Of `embed`.
struct EmbedArgs {
    // Elements of a row.
    uint cols;
    // Bytes of a row of the table.
    uint row_bytes;
    // Factor on every element.
    float scale;
};

// Of `add_row`.
struct AddRowArgs {
    // Elements of a row.
    uint cols;
    // Bytes of a row of the table.
    uint row_bytes;
    // The row that is added.
    uint row;
};

// Of `add`, `mul`, `glu`, `activate_all`, `scale` and `softcap`.
struct ElementArgs {
    // Elements.
    uint count;
    // The factor or cap.
    float factor;
};

// Of `glu_clamped`.
struct ClampedGluArgs {
    // Elements.
    uint count;
    // Slope of the sigmoid.
    float alpha;
    // Largest gate, and largest distance of the other factor from 0.
    float limit;
};

// Of `join` and `columns`.
struct ColumnsArgs {
    // Columns written.
    uint cols;
    // Columns of the first value, or of all from which some are taken.
    uint from;
    // The first of those that are taken.
    uint first;
};

// Of `lerp`.
struct LerpArgs {
    // Elements.
    uint count;
    // Elements of a row.
    uint cols;
};

// Of `bonus`.
struct BonusArgs {
    // Heads.
    uint heads;
    // Elements of a head.
    uint head_dim;
};

// Of `gather` and `mul_weight`.
struct RowsArgs {
    // Rows written.
    uint rows;
    // Columns.
    uint cols;
};

// Of `norm`.
struct NormArgs {
    // Elements of a group.
    uint cols;
    // Groups of a row.
    uint groups;
    // Added under the root; the least length.
    float eps;
};

// Of `heads`.
struct HeadsArgs {
    // Query heads.
    uint q_heads;
    // Key heads.
    uint k_heads;
    // Value heads.
    uint v_heads;
    // Elements of a query or key head.
    uint k_dim;
    // Elements of a value head.
    uint v_dim;
    // Elements of a head that rotate.
    uint dims;
    // Factor on rotated elements.
    float magnitude;
    // Added under the root of the norm.
    float eps;
};

// Of `attention` and `attention_join`.
struct AttentionArgs {
    // Query heads.
    uint heads;
    // Key heads.
    uint kv_heads;
    // Threadgroups that share the positions of a row.
    uint splits;
    // Positions that a row looks back, itself included.
    uint window;
    // Factor on scores.
    float scale;
    // Cap of scores.
    float softcap;
};

// Where a token stands in its sequence, and where the sequence's blocks are listed.
struct TokenSpan {
    // First entry in the list of blocks.
    uint table;
    // Number of the first block listed.
    uint first;
    // Position of the token.
    uint position;
    // Positions of the sequence after the step.
    uint end;
};

// Tokens of one sequence that are next to each other.
struct TokenTile {
    // First token.
    uint first;
    // Tokens.
    uint count;
};

// Of `short_conv`.
struct ShortConvArgs {
    // Columns.
    uint channels;
    // Tokens that a result depends on.
    uint width;
    // First row of the weight and element of the bias.
    uint first;
};

// Of `shift`.
struct ShiftArgs {
    // Columns.
    uint channels;
};

// Of `wkv`.
struct WkvArgs {
    // Heads.
    uint heads;
};

// Of `scan`.
struct ScanArgs {
    // Heads.
    uint heads;
    // Elements of a head.
    uint head_dim;
    // Parts of the heads that share B and C.
    uint groups;
    // Rates of a head: one, or one for each state.
    uint rates;
};

// Of `matvec`.
struct MatvecArgs {
    // Columns of the matrices.
    uint cols;
    // Rows of activations.
    uint tokens;
    // Bytes of a matrix row.
    uint row_bytes;
    // Rows of matrix 0.
    uint rows0;
    // Rows of matrix 1.
    uint rows1;
    // Rows of matrix 2.
    uint rows2;
    // Added under the root of the norm.
    float eps;
};

// Of `matvec_experts`.
struct ExpertArgs {
    // Columns of a matrix.
    uint cols;
    // Experts of a row.
    uint used;
    // Rows of one expert's matrix.
    uint rows;
    // Bytes of a matrix row.
    uint row_bytes;
};

// Of `matmul`.
struct MatmulArgs {
    // Columns of the matrix.
    uint cols;
    // Rows of activations.
    uint tokens;
    // Rows of the matrix.
    uint rows;
    // Bytes of a matrix row.
    uint row_bytes;
    // Experts of a token.
    uint used;
};

// Of `sort_by_expert`.
struct SortArgs {
    // Experts.
    uint experts;
    // Tokens times the experts of each.
    uint slots;
};

// Of `route`.
struct RouteArgs {
    // Experts.
    uint experts;
    // Experts chosen.
    uint used;
    // Factor on the weights.
    float scale;
};

// Of `combine`.
struct CombineArgs {
    // Columns of an expert's output.
    uint cols;
    // Experts of a row.
    uint used;
};

// Of the kernels in sampling.metal.
struct PickArgs {
    // Columns of the logits.
    uint vocab;
    // Candidates or logits of a row that are read.
    uint count;
    // Candidates that are written: by a threadgroup, or of a row.
    uint kept;
    // Changes of single logits.
    uint edits;
};

// How the token of a row is picked.
struct PickRow {
    // Divides positive and multiplies other logits of tokens seen.
    float repeat_penalty;
    // Taken from a logit for each time its token was seen.
    float frequency_penalty;
    // Taken from a logit whose token was seen.
    float presence_penalty;
    // Candidates kept.
    uint top_k;
    // Lower half of the share of probability kept, an f64 number.
    uint top_p_low;
    // Upper half.
    uint top_p_high;
    // Added to the best logit to give the lowest.
    float min_p_below;
    // Divides logits.
    float temperature;
    // Lower half of the random number, an f64 number.
    uint uniform_low;
    // Upper half.
    uint uniform_high;
};

// A change of one logit.
struct PickEdit {
    // The row.
    uint row;
    // The token.
    uint token;
    // Added; negative infinity removes the token.
    float bias;
    // Times that the token was seen.
    uint seen;
};
