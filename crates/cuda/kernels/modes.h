// Meanings of numbers in arguments of the fast kernels.
#pragma once

// How a mat-vec kernel gets its activations: int8 that are ready, or made of f32, or of f32 after an RMS norm.
enum ActInput { ACTS_READY = 0, ACTS_QUANTIZE = 1, ACTS_RMS_NORM = 2 };

// Activations of gated products, in the order of graph::Activation.
enum Gate { GATE_SILU = 0, GATE_GELU = 1, GATE_GELU_ERF = 2, GATE_GELU_QUICK = 3, GATE_RELU = 4, GATE_RELU_SQUARED = 5 };

// Images of activations: 16-bit ones, and that of int8 of up to 8 rows.
enum Image { IMAGE_F16 = 0, IMAGE_BF16 = 1, IMAGE_INT8 = 2 };
