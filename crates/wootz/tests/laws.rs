//! Laws that need no golden data, on a tiny model of every family: the same tokens give the same logits, bit for bit.

use std::sync::Arc;

use wootz::{Context, ContextOptions, KvType, Model, ModelOptions, Repack, RowsWanted, SequenceId, StepPart};
use wootz_arch::{ARCHITECTURES, Architecture, decoders};
use wootz_graph::Reach;
use wootz_quant::WeightType;
use wootz_testkit::{interpret, nmse, tiny};

const TYPES: [tiny::Types; 3] = [
    tiny::Types(WeightType::F32, WeightType::F32),
    tiny::Types(WeightType::BF16, WeightType::BF16),
    tiny::Types(WeightType::Q4_0, WeightType::Q8_0),
];

fn bytes(arch: &dyn Architecture, types: tiny::Types) -> Vec<u8> {
    tiny::build(arch, types, 7)
}

fn context(arch: &dyn Architecture, types: tiny::Types, options: ContextOptions) -> Context {
    let model = Model::from_bytes(bytes(arch, types), &ModelOptions::default()).unwrap();
    Context::new(Arc::new(model), &options, &mut |_| ()).unwrap()
}

/// Bits are those of the CPU; `WOOTZ_TEST_DEVICE` names another device to run the laws on.
fn options() -> ContextOptions {
    ContextOptions {
        device: std::env::var("WOOTZ_TEST_DEVICE").unwrap_or_else(|_| "cpu".into()),
        context: Some(256),
        threads: Some(2),
        sequences: 4,
        batch: Some(128),
        ..ContextOptions::default()
    }
}

/// Calls `law` with every family and choice of types.
fn each(law: impl Fn(&dyn Architecture, tiny::Types)) {
    for arch in ARCHITECTURES {
        TYPES.into_iter().for_each(|types| law(*arch, types));
    }
}

/// Calls `law` with every family that generates text, whose sequences grow, and choice of types.
fn each_decoder(law: impl Fn(&dyn Architecture, tiny::Types)) {
    for arch in decoders() {
        TYPES.into_iter().for_each(|types| law(arch, types));
    }
}

fn text(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + i * i * 11 + seed * 101) % 256).collect()
}

/// Logits of all tokens, computed in chunks of the given sizes.
fn logits(context: &mut Context, sequence: SequenceId, tokens: &[u32], chunks: &[usize]) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let mut rest = tokens;
    for size in chunks.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (chunk, after) = rest.split_at((*size).min(rest.len()));
        let output = context.step(&[StepPart { sequence, tokens: chunk, rows: RowsWanted::All }]).unwrap();
        rows.extend((0..chunk.len()).map(|i| output.row(i).to_vec()));
        rest = after;
    }
    rows
}

fn whole(context: &mut Context, tokens: &[u32]) -> Vec<Vec<f32>> {
    let (sequence, _) = context.open_prefix(&[]).unwrap();
    let rows = logits(context, sequence, tokens, &[128]);
    context.close(sequence);
    rows
}

#[test]
fn however_a_prompt_is_cut_its_logits_are_the_same() {
    each_decoder(|arch, types| {
        let tokens = text(100, 1);
        let mut context = context(arch, types, options());
        let expected = whole(&mut context, &tokens);
        assert!(expected.iter().flatten().all(|x| x.is_finite()), "{}", arch.name());
        for chunks in [&[1][..], &[17, 1, 30], &[5], &[99, 1], &[33]] {
            let (sequence, _) = context.open_prefix(&[]).unwrap();
            let found = logits(&mut context, sequence, &tokens, chunks);
            assert_eq!(found, expected, "{}, {types:?}, chunks {chunks:?}", arch.name());
            context.close(sequence);
        }
    });
}

#[test]
fn the_number_of_threads_does_not_matter() {
    each(|arch, types| {
        let tokens = text(100, 2);
        let one = whole(&mut context(arch, types, ContextOptions { threads: Some(1), ..options() }), &tokens);
        let three =
            whole(&mut context(arch, types, ContextOptions { threads: Some(3), ..options() }), &tokens);
        assert_eq!(one, three, "{}, {types:?}", arch.name());
    });
}

#[test]
fn weights_that_stay_in_their_file_give_the_same() {
    each(|arch, types| {
        let tokens = text(100, 9);
        let packed = whole(&mut context(arch, types, options()), &tokens);
        let mut stored = context(arch, types, ContextOptions { repack: Repack::Off, ..options() });
        assert_eq!(whole(&mut stored, &tokens), packed, "{}, {types:?}", arch.name());
    });
}

#[test]
fn a_batch_gives_what_its_sequences_give_alone() {
    each_decoder(|arch, types| {
        let mut context = context(arch, types, options());
        let texts = [text(40, 3), text(7, 4), text(61, 5)];
        let alone: Vec<Vec<Vec<f32>>> = texts.iter().map(|t| whole(&mut context, t)).collect();
        let open: Vec<SequenceId> = texts.iter().map(|_| context.open_prefix(&[]).unwrap().0).collect();
        let mut found: Vec<Vec<Vec<f32>>> = vec![Vec::new(); texts.len()];
        // Uneven progress: each step takes another number of tokens of each sequence.
        let mut step = 0;
        loop {
            let mut parts = Vec::new();
            let mut owners = Vec::new();
            for (i, t) in texts.iter().enumerate() {
                let done = found[i].len();
                let n = (1 + (step * 5 + i * 3) % 13).min(t.len() - done);
                if n > 0 {
                    parts.push(StepPart {
                        sequence: open[i],
                        tokens: &t[done..done + n],
                        rows: RowsWanted::All,
                    });
                    owners.extend(std::iter::repeat_n(i, n));
                }
            }
            if parts.is_empty() {
                break;
            }
            let output = context.step(&parts).unwrap();
            for (row, owner) in owners.into_iter().enumerate() {
                found[owner].push(output.row(row).to_vec());
            }
            step += 1;
        }
        assert_eq!(found, alone, "{}, {types:?}", arch.name());
    });
}

#[test]
fn texts_of_a_batch_do_not_see_each_other() {
    for arch in wootz_arch::encoders() {
        for types in TYPES {
            let mut context = context(arch, types, options());
            let texts = [text(40, 3), text(7, 4), text(61, 5), text(1, 6)];
            let alone: Vec<Vec<Vec<f32>>> = texts.iter().map(|t| whole(&mut context, t)).collect();
            for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
                let open = order.map(|_| context.open_prefix(&[]).unwrap().0);
                let parts: Vec<StepPart<'_>> = (order.iter().zip(open))
                    .map(|(i, sequence)| StepPart { sequence, tokens: &texts[*i], rows: RowsWanted::All })
                    .collect();
                let output = context.step(&parts).unwrap();
                let mut rows = (0..output.rows).map(|row| output.row(row).to_vec());
                for i in order {
                    let found: Vec<Vec<f32>> = rows.by_ref().take(texts[i].len()).collect();
                    assert_eq!(found, alone[i], "{}, {types:?}, text {i} of {order:?}", arch.name());
                }
                open.into_iter().for_each(|sequence| context.close(sequence));
            }
        }
    }
}

#[test]
fn a_cached_prefix_changes_nothing() {
    each_decoder(|arch, types| {
        let mut context = context(arch, types, options());
        let tokens = text(100, 6);
        // In two steps: recurrent states are kept where each of them ends.
        let (sequence, _) = context.open_prefix(&[]).unwrap();
        let expected = logits(&mut context, sequence, &tokens, &[66, 34]);
        context.close(sequence);
        // The cache now holds the text; a second run must find it, and so must one that leaves it midway.
        let (sequence, cached) = context.open_prefix(&tokens[..99]).unwrap();
        assert!(cached >= 64, "{}: only {cached} tokens were found", arch.name());
        assert_eq!(
            logits(&mut context, sequence, &tokens[cached..], &[128]),
            expected[cached..],
            "{}",
            arch.name()
        );
        context.close(sequence);
        let mut other = tokens[..70].to_vec();
        other.extend(text(20, 9));
        let (sequence, cached) = context.open_prefix(&other[..89]).unwrap();
        assert!((64..=70).contains(&cached), "{}: {cached} tokens were found", arch.name());
        let found = logits(&mut context, sequence, &other[cached..], &[128]);
        context.close(sequence);
        let mut fresh = self::context(arch, types, options());
        assert_eq!(found, whole(&mut fresh, &other)[cached..], "{}, {types:?}", arch.name());
    });
}

#[test]
fn a_fork_and_a_step_back_change_nothing() {
    each_decoder(|arch, types| {
        let mut context = context(arch, types, options());
        let (a, b) = (text(50, 7), text(30, 8));
        let both: Vec<u32> = a.iter().chain(&b).copied().collect();
        let expected = whole(&mut self::context(arch, types, options()), &both);
        let (sequence, _) = context.open_prefix(&[]).unwrap();
        logits(&mut context, sequence, &a, &[128]);
        let fork = context.fork(sequence).unwrap();
        // The first goes elsewhere and comes back; the fork goes on.
        logits(&mut context, sequence, &text(20, 1), &[128]);
        assert_eq!(logits(&mut context, fork, &b, &[4]), expected[50..], "{}, fork", arch.name());
        let left = context.truncate(sequence, 50).unwrap();
        // A recurrent state is kept where a block ends.
        let kept = if context.model().arch().reaches().contains(&Reach::State) { 32 } else { 50 };
        assert_eq!(left, kept, "{}", arch.name());
        let found = logits(&mut context, sequence, &both[left..], &[128]);
        assert_eq!(found, expected[left..], "{}, step back", arch.name());
    });
}

#[test]
fn a_saved_state_continues_as_if_never_left() {
    each_decoder(|arch, types| {
        let name = format!("wootz-state-{}-{}-{:?}", std::process::id(), arch.name(), types.0);
        let path = std::env::temp_dir().join(name);
        let tokens = text(100, 3);
        let expected = whole(&mut context(arch, types, options()), &tokens);
        let mut first = context(arch, types, options());
        let (sequence, _) = first.open_prefix(&[]).unwrap();
        logits(&mut first, sequence, &tokens[..80], &[128]);
        first.close(sequence);
        let saved = first.save(&tokens[..80], &path).unwrap();
        assert!(saved >= 64, "{}: {saved} tokens saved", arch.name());
        let mut second = context(arch, types, options());
        assert_eq!(second.restore(&path).unwrap(), saved);
        let (sequence, cached) = second.open_prefix(&tokens[..99]).unwrap();
        assert!(cached >= 64, "{}: {cached} tokens found after a restore", arch.name());
        assert_eq!(
            logits(&mut second, sequence, &tokens[cached..], &[128]),
            expected[cached..],
            "{}",
            arch.name()
        );
        // A state of other weights is refused; a damaged one as well.
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        assert!(context(arch, types, options()).restore(&path).is_err());
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn what_a_saved_state_lacks_is_not_found() {
    each_decoder(|arch, types| {
        let name = format!("wootz-part-{}-{}-{:?}", std::process::id(), arch.name(), types.0);
        let path = std::env::temp_dir().join(name);
        let tokens = text(200, 5);
        // Small steps, so that windows leave blocks and states of early positions behind.
        let options = ContextOptions { batch: Some(16), ..options() };
        let mut first = context(arch, types, options.clone());
        let (sequence, _) = first.open_prefix(&[]).unwrap();
        let expected = logits(&mut first, sequence, &tokens, &[16]);
        first.close(sequence);
        first.save(&tokens, &path).unwrap();
        let mut second = context(arch, types, options);
        second.restore(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // A text that leaves the saved one early.
        let (sequence, cached) = second.open_prefix(&tokens[..50]).unwrap();
        let found = logits(&mut second, sequence, &tokens[cached..60], &[16]);
        assert_eq!(found, expected[cached..60], "{}, {types:?}, {cached} tokens found", arch.name());
    });
}

#[test]
fn every_family_agrees_with_the_interpreter() {
    for kv in [KvType::F16, KvType::F32, KvType::Q8_0] {
        each(|arch, types| {
            let options = ContextOptions { k_type: kv, v_type: kv, ..options() };
            let mut context = context(arch, types, options);
            let tokens = text(90, 4);
            let found = whole(&mut context, &tokens).concat();
            // The cache of an encoder lives for one step and is f32 in any case.
            let kv = if arch.causal() { kv } else { KvType::F32 };
            let model = context.model();
            let expected = interpret(model.arch(), model.weight_source(), &tokens, kv);
            let error = nmse(&found, &expected);
            // Activations of 8 bits where weights are quantised, of 16 where they are BF16; random weights let errors grow over layers.
            let limit = if types.0 == WeightType::F32 { 1e-5 } else { 5e-3 };
            assert!(error < limit, "{}, {types:?}, {kv:?} cache: error {error:.1e}", arch.name());
        });
    }
}
