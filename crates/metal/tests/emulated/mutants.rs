//! Mistakes that the emulated device must find: each is made in a copy of the kernels, in a plan, or in what the host
//! does, and a run that goes well without it must fail with it.

use std::sync::Arc;

use wootz_arch::ARCHITECTURES;
use wootz_graph::{After, Backend, KvType, RunError, passes};
use wootz_metal::args::ElementArgs;
use wootz_metal::device::{Buffer, Dispatch, MetalDevice, Pass, Slice, StorageMode};
use wootz_metal::emulator::{EmulatedDevice, Order, Profile};
use wootz_metal::library::{Function, Library, Sources};
use wootz_quant::WeightType;
use wootz_testkit::{check, tiny};

use crate::common::{CASES, Setup, backend, toolchain};
use crate::model::TinyModel;

const TYPES: tiny::Types = tiny::Types(WeightType::F32, WeightType::F32);

/// Runs one case with kernels made of these sources.
fn run_case(case: &str, sources: Sources, profile: Profile) -> Result<f64, String> {
    let backend = backend(Setup { sources, ..Setup::new(profile) });
    let case = CASES.iter().find(|c| c.name == case).unwrap();
    check(&backend, &*backend.open(0).unwrap(), case)
}

/// Runs one case on altered kernels; the failure it must have.
fn altered(case: &str, file: &str, old: &str, new: &str, profile: Profile) -> String {
    run_case(case, Sources::default(), profile.clone()).unwrap();
    run_case(case, Sources::default().altered(file, old, new).unwrap(), profile).unwrap_err()
}

fn assert_names(message: &str, words: &str) {
    assert!(message.contains(words), "{message:?} does not say {words:?}");
}

#[test]
fn a_deleted_threadgroup_barrier() {
    let old =
        "    if (lane == 0) partial[group] = x;\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n";
    let new = "    if (lane == 0) partial[group] = x;\n";
    let message =
        altered("norm Rms 576 columns, 9 groups, affine true", "common.h", old, new, Profile::unified());
    assert_names(&message, "race between threads of a threadgroup");
}

#[test]
fn a_deleted_simdgroup_barrier() {
    let old = "        own[lane] = weight;\n        simdgroup_barrier(mem_flags::mem_threadgroup);\n";
    let new = "        own[lane] = weight;\n";
    let message = altered("attention, window 40", "attention.metal", old, new, Profile::unified());
    assert_names(&message, "race between threads of a threadgroup");
}

#[test]
fn a_wrong_argument_offset() {
    // The bytes of a table's row and its columns change places in the kernel's struct.
    let start = "struct EmbedArgs {\n    // Elements of a row.\n";
    let old = format!("{start}    uint cols;\n    // Bytes of a row of the table.\n    uint row_bytes;\n");
    let new = format!("{start}    uint row_bytes;\n    // Bytes of a row of the table.\n    uint cols;\n");
    altered("embed Q4_K", "args.h", &old, &new, Profile::unified());
}

#[test]
fn a_row_too_many() {
    let message = altered(
        "gather",
        "elementwise.metal",
        "if (place.x >= args.cols || place.y >= args.rows) return;",
        "if (place.x > args.cols || place.y >= args.rows) return;",
        Profile::unified(),
    );
    assert!(message.contains("outside") || message.contains("race between threadgroups"), "{message}");
}

#[test]
fn swapped_buffer_indices() {
    let old = "device const float* gate [[buffer(1)]],\n                device const float* up [[buffer(2)]]";
    // Names are bound, so that only the kernel's own mix-up matters.
    let new = "device const float* up [[buffer(1)]],\n                device const float* gate [[buffer(2)]]";
    // Both sides follow the signature: an exchange of two arguments changes nothing.
    let sources = Sources::default().altered("elementwise.metal", old, new).unwrap();
    run_case("glu Silu", sources, Profile::unified()).unwrap();
    // An exchange in the kernel's body is a wrong result.
    let message = altered(
        "glu Silu",
        "elementwise.metal",
        "y[i] = activate(gate[i]) * up[i];",
        "y[i] = activate(up[i]) * gate[i];",
        Profile::unified(),
    );
    assert_names(&message, "error");
}

#[test]
fn a_kernel_that_takes_32_for_the_width_of_simdgroups() {
    let old = "for (uint i = lane; i < dim; i += simd_width) {\n        float x = is_query";
    let new = "for (uint i = lane; i < dim; i += 32) {\n        float x = is_query";
    let case = "attention 8 heads over 2, 128 wide";
    let message = altered(case, "heads.metal", old, new, Profile::wide());
    assert_names(&message, "race between threads of a threadgroup");
}

#[test]
fn every_deleted_barrier_of_a_plan() {
    let model = TinyModel::new(ARCHITECTURES[0], TYPES);
    let backend = backend(Setup::new(Profile::unified()));
    let run = |deleted: Option<usize>| -> Result<(), RunError> {
        let mut executor = model.load(&backend, KvType::F16).unwrap();
        let done = model.generate(&[1, 2, 3], 1, |graph, inputs| {
            let mut plan = passes::compile(graph.clone(), model.weights(), &backend).unwrap();
            if let Some(i) = deleted {
                plan.steps[i].after = After::Free;
            }
            let program = executor.compile(plan)?;
            let ticket = executor.submit(program, inputs)?;
            Ok(executor.wait(ticket)?.data.to_vec())
        });
        done.map(|_| ())
    };
    run(None).unwrap();
    let plan = passes::compile(model.graph(3), model.weights(), &backend).unwrap();
    let barriers: Vec<usize> =
        (0..plan.steps.len()).filter(|i| plan.steps[*i].after == After::Barrier).collect();
    assert!(barriers.len() > 4);
    for i in barriers {
        let message = run(Some(i)).expect_err(&format!("step {i} needs its barrier")).to_string();
        assert_names(&message, "no barrier");
    }
}

/// A device of its own with a function of element-wise kernels.
fn device(profile: Profile) -> (EmulatedDevice, wootz_metal::device::Pipeline) {
    let device = EmulatedDevice::new(profile, toolchain()).unwrap();
    let width = device.caps().simd_width;
    let function = Function::new(Library::plain("elementwise"), "scale").set("simd_width", width);
    let pipeline = device.pipeline(&function).unwrap();
    (device, pipeline)
}

/// Doubles the 64 floats of one buffer into another.
fn double(
    device: &EmulatedDevice,
    pipeline: &wootz_metal::device::Pipeline,
    x: &Buffer,
    y: &Buffer,
) -> Result<Arc<dyn wootz_metal::device::Completion>, wootz_metal::MetalError> {
    let mut commands = device.command_buffer("double")?;
    commands.begin(Pass::Compute { concurrent: true });
    commands.dispatch(&Dispatch {
        pipeline,
        args: bytemuck::bytes_of(&ElementArgs { count: 64, factor: 2.0 }),
        buffers: &[(1, Slice::whole(x)), (2, Slice::whole(y))],
        grid: [1, 1, 1],
        threads: 64,
    })?;
    commands.commit()
}

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

fn floats(n: usize) -> Vec<u8> {
    bytemuck::cast_slice(&vec![1.5f32; n]).to_vec()
}

fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn a_missing_upload_and_a_missing_synchronization() {
    let (device, pipeline) = device(Profile::discrete());
    let private = device.buffer(256, StorageMode::Private, "private").unwrap();
    assert!(private.write(0, &floats(64)).is_err(), "the host cannot fill private memory");
    let managed = device.buffer(256, StorageMode::Managed, "managed").unwrap();
    let x = device.buffer(256, StorageMode::Shared, "x").unwrap();
    x.write(0, &floats(64)).unwrap();
    double(&device, &pipeline, &x, &managed).unwrap().wait(SECOND).unwrap();
    let read = || {
        let mut bytes = vec![0; 256];
        managed.read(0, &mut bytes).unwrap();
        values(&bytes)
    };
    assert_ne!(read(), vec![3.0; 64], "the host must not see what was not synchronized");
    let mut commands = device.command_buffer("back").unwrap();
    commands.begin(Pass::Copy);
    commands.synchronize(&managed).unwrap();
    commands.commit().unwrap().wait(SECOND).unwrap();
    assert_eq!(read(), vec![3.0; 64]);
    // What nobody uploaded is no number.
    double(&device, &pipeline, &private, &x).unwrap().wait(SECOND).unwrap();
    let mut bytes = vec![0; 256];
    x.read(0, &mut bytes).unwrap();
    assert!(values(&bytes).iter().all(|v| v.is_nan()));
}

#[test]
fn a_buffer_freed_or_written_while_in_use() {
    let (device, pipeline) = device(Profile::plain());
    let x = device.buffer(256, StorageMode::Shared, "x").unwrap();
    let y = device.buffer(256, StorageMode::Shared, "y").unwrap();
    x.write(0, &floats(64)).unwrap();
    let running = double(&device, &pipeline, &x, &y).unwrap();
    assert!(x.write(0, &floats(64)).is_err(), "the host must wait");
    drop(x);
    assert_names(&running.wait(SECOND).unwrap_err().to_string(), "freed while commands used it");
}

#[test]
fn a_buffer_that_is_not_resident() {
    let profile = Profile { resident_from: 256, ..Profile::unified() };
    let (device, pipeline) = device(profile);
    let x = device.buffer(256, StorageMode::Shared, "x").unwrap();
    let y = device.buffer(256, StorageMode::Shared, "y").unwrap();
    x.write(0, &floats(64)).unwrap();
    let kept = device.keep_resident(&[x.clone(), y.clone()]).unwrap();
    double(&device, &pipeline, &x, &y).unwrap().wait(SECOND).unwrap();
    drop(kept);
    let failed = double(&device, &pipeline, &x, &y).unwrap().wait(SECOND);
    assert_names(&failed.unwrap_err().to_string(), "not resident");
}

#[test]
fn limits() {
    let (device, pipeline) = device(Profile::small_buffers());
    assert!(device.buffer(1 << 20, StorageMode::Shared, "large").is_err());
    assert!(device.buffer(256, StorageMode::Managed, "managed").is_err(), "unified memory has no such mode");
    let x = device.buffer(256, StorageMode::Shared, "x").unwrap();
    let mut commands = device.command_buffer("limits").unwrap();
    commands.begin(Pass::Compute { concurrent: true });
    let mut dispatch = |grid, threads, bytes| {
        let slice = Slice { buffer: x.clone(), offset: 0, bytes };
        let args = ElementArgs { count: 64, factor: 2.0 };
        commands.dispatch(&Dispatch {
            pipeline: &pipeline,
            args: bytemuck::bytes_of(&args),
            buffers: &[(1, slice.clone()), (2, slice)],
            grid,
            threads,
        })
    };
    assert!(dispatch([1, 1, 1], 2048, 256).is_err(), "too many threads");
    assert!(dispatch([1, 1, 1], 33, 256).is_err(), "a part of a simdgroup");
    assert!(dispatch([0, 1, 1], 64, 256).is_err(), "an empty grid");
    assert!(dispatch([1, 1, 1], 64, 512).is_err(), "more than the buffer");
    dispatch([1, 1, 1], 64, 256).unwrap();
}

#[test]
fn a_failed_command_buffer_fails_its_step_alone() {
    let model = TinyModel::new(ARCHITECTURES[0], TYPES);
    let fails = Profile { fails_after: Some(8), ..Profile::plain() };
    let result = model.run(&backend(Setup::new(fails)), KvType::F16, &[1, 2, 3], 20);
    assert_names(&result.unwrap_err().to_string(), "told to fail");
    model.run(&backend(Setup::new(Profile::plain())), KvType::F16, &[1, 2, 3], 2).unwrap();
}

#[test]
fn a_gpu_that_hangs_fails_its_steps_and_no_others() {
    let model = TinyModel::new(ARCHITECTURES[0], TYPES);
    let hangs = Profile { hangs_after: Some(4), ..Profile::plain() };
    let backend = backend(Setup::new(hangs));
    let mut executor = model.load(&backend, KvType::F16).unwrap();
    let mut step = || {
        model.generate(&[1, 2, 3], 1, |graph, inputs| {
            let plan = passes::compile(graph.clone(), model.weights(), &backend).unwrap();
            let program = executor.compile(plan)?;
            let ticket = executor.submit(program, inputs)?;
            Ok(executor.wait(ticket)?.data.to_vec())
        })
    };
    let first = (0..9).find_map(|_| step().err()).expect("command buffers that are never done");
    assert_names(&first.to_string(), "was not done after");
    // Neither are those after it, whose memory the hanging ones may still use.
    for _ in 0..3 {
        assert_names(&step().unwrap_err().to_string(), "was not done after");
    }
    model.run(&crate::common::backend(Setup::new(Profile::plain())), KvType::F16, &[1, 2, 3], 2).unwrap();
}

#[test]
fn orders_differ() {
    // A kernel in which the last threadgroup wins gives different results, so that orders are seen to be taken.
    let old = "if (i < args.count) y[i] = args.factor * x[i];";
    let new = "if (i < args.count) y[0] = float(i);";
    let sources = Sources::default().altered("elementwise.metal", old, new).unwrap();
    let results: Vec<f32> = Order::ALL
        .iter()
        .map(|order| {
            let profile = Profile::plain().ordered(*order).untraced();
            let device = EmulatedDevice::with_sources(profile, toolchain(), sources.clone()).unwrap();
            let function = Function::new(Library::plain("elementwise"), "scale").set("simd_width", 32u32);
            let pipeline = device.pipeline(&function).unwrap();
            let x = device.buffer(256, StorageMode::Shared, "x").unwrap();
            let y = device.buffer(256, StorageMode::Shared, "y").unwrap();
            double(&device, &pipeline, &x, &y).unwrap().wait(SECOND).unwrap();
            let mut bytes = [0; 4];
            y.read(0, &mut bytes).unwrap();
            f32::from_le_bytes(bytes)
        })
        .collect();
    assert_eq!(results[..2], [63.0, 0.0]);
    assert!(results[2] != 63.0 && results[2] != 0.0);
}
