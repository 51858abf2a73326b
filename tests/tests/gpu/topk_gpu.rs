//! Top-k on the devices that run passes, beside what the suite has: lengths around every boundary, gradients that are
//! not bound at once, limits that are too small.

use gradwire::{BackendKind, Device, Dtype, Error, Gradient, Seed, TopK};
use gradwire_tests::cases;
use gradwire_tests::{Depth, require, selections, sparse};

/// Lengths around a tile, around the eight tiles of a warp and the sixty-four of a block.
const LENGTHS: [usize; 9] = [0, 1, 31, 8191, 8192, 8193, 65_537, 524_288, 524_321];

fn all(outcomes: impl IntoIterator<Item = Result<u64, String>>) {
    let failures: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

fn lengths(device: &Device) {
    for (at, n) in LENGTHS.into_iter().enumerate() {
        // Normal, all equal, and some NaN.
        for (index, fill) in [sparse::FILLS[0], sparse::FILLS[7], sparse::FILLS[14]].into_iter().enumerate() {
            if Depth::of_tests().sweeps() || n < 10_000 {
                all([sparse::against_oracle(device, fill, n), sparse::feedback(device, fill, n)]);
            } else if at % 3 == index {
                // Of a length that takes long, one input, and the counts whose passes differ.
                all([sparse::counts_against_oracle(device, fill, n, &[n / 1000, n / 10, n - 1])]);
            }
        }
    }
}

/// Every input that misleads the sample, in every setting whose passes differ. But for whole sweeps, each input has two
/// of six parts in one type each; the number of a device says which, and three devices have all parts.
fn misled(device: &Device, number: usize) {
    let parts = [0.001, 0.01, 0.1, 0.3, 0.5, 0.99];
    for (index, (name, fill)) in selections::MISLEADING.into_iter().enumerate() {
        let x = fill(70_001);
        for (at, part) in parts.into_iter().enumerate() {
            let (label, codec) = (format!("{name}, {part}"), TopK::fraction(part));
            if Depth::of_tests().sweeps() {
                all([selections::against_cpu(device, &codec, &label, &x)]);
            } else if (at + index + number).is_multiple_of(3) {
                all([selections::against_cpu_in(device, &codec, &label, &x, (at / 3 + index / 3 + number) % 3)]);
            }
        }
    }
    let lens = [30_011, 8193, 1, 20_000, 9999];
    let x = selections::misleading_in(cases::normal(lens.iter().sum(), 3), &lens, |v| 1e6 * (v.abs() + 1.0));
    for part in [100, 3] {
        let segments = lens.map(|len| gradwire::Segment { elements: len as u64, k: (len / part) as u64 });
        let (label, codec) = ("misleading segments", TopK::segments(&segments));
        if Depth::of_tests().sweeps() {
            all([selections::against_cpu(device, &codec, label, &x)]);
        } else {
            all([selections::against_cpu_in(device, &codec, label, &x, number % 3)]);
        }
    }
}

/// More than 64 times 64 tiles, so that what is before a tile is added up in all three steps: entries and ties of a
/// right sample, and of the sketch.
///
/// By default one of the inputs has its turn.
fn sums_of_sums(device: &Device, inputs: std::ops::Range<usize>) {
    let n = (1 << 25) + (3 << 19) + 5;
    // Ties in all tiles, some of which are kept.
    let few: Vec<f32> = cases::normal(n, 5).into_iter().map(|v| (v * 4.0).round()).collect();
    let misleading = selections::MISLEADING[0].1(n);
    // With several segments, one begins and another ends among a warp's tiles.
    let segments = selections::segments(n as u64, 40);
    let codecs = [TopK::fraction(0.003), TopK::segments(&segments), TopK::fraction(0.001)];
    let all = [("few values", &few), ("few values, 40 segments", &few), ("the sample is huge", &misleading)];
    for (index, ((name, x), codec)) in all.into_iter().zip(codecs).enumerate() {
        if !inputs.contains(&index) || !Depth::of_tests().takes(index, inputs.len()) {
            continue;
        }
        let [here, expected] = [device, &Device::cpu()]
            .map(|device| device.encode_sparse(&codec, Gradient::F32(x), Seed::new(1)).expect("it is selected"));
        assert!(here.as_bytes() == expected.as_bytes(), "{name}: not what the CPU selects");
    }
}

/// What the sample's pass leaves: of each workgroup two keys from which on as many of its keys are as the ranks say.
/// The keys are looked up here one by one, and sorted.
fn guesses(device: &Device) {
    use gradwire::plan::Params;
    use gradwire::session::Role;
    use gradwire_kernels::arith::topk::{BF16_NAN_KEY, F16_NAN_KEY, NAN_KEY, NO_HALF_KEY, NO_KEY, TOGETHER, sampled};
    use gradwire_kernels::params::{THREADS, segment};
    use half::{bf16, f16};

    let n = 300_007;
    let normal = cases::normal(n, 17);
    let large = cases::normal((1 << 22) + 5, 18);
    let few: Vec<f32> = normal.iter().map(|v| (v * 2.0).round()).collect();
    let rare: Vec<f32> = normal.iter().map(|v| if v.abs() > 2.9 { *v } else { 0.0 }).collect();
    let close: Vec<f32> = normal.iter().map(|v| 1.0 + v * 1e-5).collect();
    let tiny: Vec<f32> = normal.iter().map(|v| v * 1e-41).collect();
    let not_finite: Vec<f32> = normal.iter().map(|v| if *v > 2.0 { f32::NAN } else { 1.0 / v.round() }).collect();
    let one = vec![-3.0; n];
    let all = [&normal, &few, &rare, &close, &tiny, &not_finite, &one, &large];
    let codecs = |n| {
        [TopK::fraction(0.01), TopK::fraction(0.3), TopK::fraction(1e-5), TopK::segments(&selections::segments(n, 9))]
    };
    for (number, x) in all.into_iter().enumerate() {
        let halves = x.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let brains = x.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        let typed: [(Dtype, Vec<u8>); 3] =
            [(Dtype::F32, bytemuck::cast_slice(x).to_vec()), (Dtype::F16, halves), (Dtype::Bf16, brains)];
        for (codec, (dtype, bytes)) in codecs(x.len() as u64).iter().flat_map(|c| typed.iter().map(move |t| (c, t))) {
            if x.len() > n && (*dtype, codec) != (Dtype::F32, &codecs(x.len() as u64)[0]) {
                continue;
            }
            let selection = codec.selection(x.len(), *dtype, false, &device.limits()).expect("it is planned");
            let sample = &selection.passes()[..1];
            let Params::Select(p) = sample[0].params() else { panic!("a selection begins with its sample") };
            let mut session = device.session(selection.sizes()).expect("there is room");
            session.write(Role::Input, 0, bytes).expect("it fits");
            selection.prepare(session.as_mut(), 0).expect("it fits");
            // SAFETY: the first pass of a selection over its table.
            unsafe { session.run_trusted(sample) }.expect("it is sampled");
            // Words of the table, and of the guesses, where they lie; nothing writes what is between.
            let mut words = vec![0u32; p.room as usize];
            let table = selection.table();
            bytemuck::cast_slice_mut(&mut words)[..table.len()].copy_from_slice(&table);
            let first = p.guesses(0);
            let guesses: &mut [u8] = bytemuck::cast_slice_mut(&mut words[first as usize..]);
            session.read(Role::Workspace, 4 * u64::from(first), guesses).expect("they are there");

            let (nan, none) = match dtype {
                Dtype::F32 => (NAN_KEY, NO_KEY),
                Dtype::F16 => (F16_NAN_KEY, NO_HALF_KEY),
                _ => (BF16_NAN_KEY, NO_HALF_KEY),
            };
            let key = |at: u32| match bytes.chunks_exact(bytes.len() / x.len()).nth(at as usize) {
                Some([a, b, c, d]) => (u32::from_le_bytes([*a, *b, *c, *d]) & 0x7fff_ffff).min(nan),
                Some([a, b]) => (u32::from(u16::from_le_bytes([*a, *b])) & 0x7fff).min(nan),
                found => panic!("{found:?} is no element"),
            };
            for index in p.first_tile..p.first_tile + p.tiles {
                let table = |word: u32| words[(index * segment::WORDS + word) as usize];
                let (start, elements) = (table(segment::START), table(segment::ELEMENTS));
                for workgroup in 0..1 << p.samples_log2 {
                    let at = (p.guesses(index) + 2 * workgroup) as usize;
                    let found = [!words[at], words[at + 1]];
                    let label = format!("gradient {number}, {dtype:?}, segment {index}: {found:x?}");
                    if table(segment::FIXED) | table(segment::UNSAMPLED) != 0 {
                        assert_eq!(words[at..at + 2], [0, 0], "{label}");
                        continue;
                    }
                    let log2 = table(segment::SLOTS_LOG2);
                    let mut keys = Vec::new();
                    for place in 0..THREADS << log2 {
                        let first = start + sampled(place / TOGETHER, 5 + log2, elements, workgroup);
                        let element = (first / TOGETHER * TOGETHER).max(start) + place % TOGETHER;
                        if element < start + elements {
                            keys.push(key(element));
                        }
                    }
                    keys.sort_unstable_by(|a, b| b.cmp(a));
                    // From the key of a rank on; or a lower one, above the next.
                    let is_of = |rank: u32, found: u32| {
                        let rank = rank as usize;
                        let wanted = keys.get(rank - 1).copied().unwrap_or(0);
                        found == wanted || found < wanted && keys.get(rank).is_none_or(|next| *next < found)
                    };
                    let [low, high] = [table(segment::RANK_LOW), table(segment::RANK_HIGH)];
                    assert!(if low == 0 { found[0] == 0 } else { is_of(low, found[0] - 1) }, "{label}: {low}");
                    assert!(if high == 0 { found[1] == none } else { is_of(high, found[1]) }, "{label}: {high}");
                }
            }
        }
    }
}

#[cfg(feature = "cuda")]
mod ptx {
    use std::sync::Arc;

    use gradwire::backend::cuda::Cuda;
    use gradwire_kernels::arith::topk::NAN_KEY;
    use gradwire_ptx_machine::{Machine, Space, Violation};
    use gradwire_tests::cases::Fill;

    use super::*;

    /// What is compared could be wrong: a kernel that orders NaN as it orders infinity is found.
    #[test]
    fn a_planted_order_of_nan_is_found() {
        let [right, wrong] = [NAN_KEY, NAN_KEY - 1].map(|key| format!(", {key}"));
        let machine = Arc::new(Machine::new((7, 0), 1).planting(&right, &wrong));
        let device = Device::from_cuda(Cuda::with_driver(machine, Some(70)).expect("an artifact that fits"));
        let nan_and_infinity: Fill = ("NaN behind infinity", |n| {
            (0..n)
                .map(|i| {
                    if i % 7 == 3 {
                        f32::INFINITY
                    } else if i % 1000 == 999 {
                        f32::NAN
                    } else {
                        1.0
                    }
                })
                .collect()
        });
        let error = sparse::against_oracle(&device, nan_and_infinity, 20_000).expect_err("a fault was planted");
        assert!(error.contains("the kept set"), "{error}");
    }

    #[test]
    fn the_sample_has_keys_of_its_ranks() {
        for (compute, seed) in [((3, 5), 1), ((9, 0), 2)] {
            let machine = Arc::new(Machine::new(compute, seed));
            guesses(&Device::from_cuda(Cuda::with_driver(machine, None).expect("an artifact that fits")));
        }
    }

    /// Each of the sample's barriers is needed: without it, warps meet in shared memory.
    #[test]
    fn a_sample_without_one_of_its_barriers_is_a_race() {
        let family = gradwire_ptx::FAMILIES.iter().find(|f| f.name == "topk").expect("it is there");
        let text = family.artifacts[4].instructions();
        let kernel = &text[text.find(".entry topk_sample(").expect("it is there")..];
        let kernel = &kernel[..kernel.find("\n}").expect("it ends")];
        let barrier = "bar.sync 0;";
        let places: Vec<usize> = kernel.match_indices(barrier).map(|(at, _)| at).collect();
        assert_eq!(places.len(), 5, "before the first digit, in it twice, and in a later one twice");
        let x = cases::normal(100_000, 3);
        for at in places {
            let (before, from) = (&kernel[..at], &kernel[..at + barrier.len()]);
            let machine = Arc::new(Machine::new((9, 0), 1).planting(from, before));
            let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).expect("it still loads"));
            let codec = TopK::fraction(0.01);
            let outcome = device.encode_sparse(&codec, Gradient::F32(&x), Seed::new(1));
            assert!(machine.is_planted() && outcome.is_err(), "nothing is found without the barrier at {at}");
            let faults = machine.take_faults();
            // A warp that is ahead of the others reads what nothing wrote; one that is behind meets what they wrote.
            let shared = |space: &Space| *space == Space::Shared;
            let is_race = |what: &Violation| match what {
                Violation::Race { space, .. } | Violation::Unwritten { space, .. } => shared(space),
                _ => false,
            };
            assert!(matches!(&faults[..], [f] if f.kernel == "topk_sample" && is_race(&f.what)), "{at}: {faults:?}");
        }
    }

    /// Passes that hand over within a launch are ordered by their fences, each of both, and by nothing else.
    #[test]
    fn a_hand_over_without_a_fence_is_a_race() {
        let x = cases::normal(1_200_000, 3);
        let (told, waited) = (("membar.gl;\natom.", "atom."), ("membar.gl;\nselp", "selp"));
        for (from, to) in [told, waited, ("membar.gl;", "membar.cta;")] {
            let machine = Arc::new(Machine::new((9, 0), 1).planting(from, to));
            let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).expect("it still loads"));
            let error = device
                .encode_sparse(&TopK::fraction(0.01), Gradient::F32(&x), Seed::new(1))
                .expect_err("its blocks are ordered by nothing");
            assert!(matches!(error, Error::Backend { .. }), "{error:?}");
            let faults = machine.take_faults();
            let raced = |what: &Violation| matches!(what, Violation::Race { space: Space::Global, .. });
            assert!(matches!(&faults[..], [fault] if fault.kernel == "topk_rest" && raced(&fault.what)), "{faults:?}");
        }
    }

    /// Pieces that somebody took and never finishes, as where two streams share a workspace: the wait ends, nothing is
    /// written, and the host is told. So it is where the passes run over memory that no sample prepared.
    #[test]
    fn a_wait_in_vain_comes_to_an_end() {
        use gradwire::plan::Params;
        use gradwire::session::Role;
        use gradwire_kernels::params::room;

        let device = Device::from_cuda(Cuda::with_driver(Arc::new(Machine::new((9, 0), 4)), None).expect("it fits"));
        let x = cases::normal(20_000, 3);
        let selection =
            TopK::fraction(0.01).selection(x.len(), Dtype::F32, false, &device.limits()).expect("it is planned");
        let at = selection.passes().iter().find_map(|pass| match pass.params() {
            Params::Select(p) => Some(u64::from(p.room)),
            _ => None,
        });
        let room = 4 * at.expect("a selection");
        let end = selection.end_bytes();
        assert_eq!(end, room + 4 * u64::from(room::STUCK)..room + 4 * u64::from(room::STUCK) + 4);
        let mut session = device.session(selection.sizes()).expect("there is room");
        session.write(Role::Input, 0, bytemuck::cast_slice(&x)).expect("it fits");
        selection.prepare(session.as_mut(), 0).expect("it fits");
        // SAFETY: all of a selection over its table.
        unsafe { session.run_trusted(selection.passes()) }.expect("it is selected");
        let told = |session: &mut dyn gradwire::session::Session| {
            let mut word = [0; 4];
            session.read(Role::Workspace, end.start, &mut word).expect("it is there");
            selection.check_end(&word)
        };
        told(session.as_mut()).expect("nobody disturbed it");

        let seven = vec![7; 4 * selection.entries() as usize];
        let counters = |taken: u32, stuck: u32| {
            let mut words = [0u32; room::WORDS as usize];
            words[room::PIECES as usize] = taken;
            words[room::STUCK as usize] = stuck;
            words
        };
        for words in [counters(1000, 0), counters(1000, 1)] {
            session.write(Role::Indices, 0, &seven).expect("it fits");
            session.write(Role::Workspace, room, bytemuck::cast_slice(&words)).expect("it fits");
            // SAFETY: the table is there, and what is disturbed are counts, which the kernels take for what they are.
            unsafe { session.run_trusted(&selection.passes()[2..]) }.expect("the kernels end");
            let error = told(session.as_mut()).expect_err("it waited in vain");
            assert!(matches!(error, Error::Stuck), "{error:?}");
            let mut indices = seven.clone();
            session.read(Role::Indices, 0, &mut indices).expect("they are there");
            assert_eq!(indices, seven, "nothing is written");
        }
        // The same memory selects again once a sample has prepared it.
        // SAFETY: as above.
        unsafe { session.run_trusted(selection.passes()) }.expect("it is selected");
        told(session.as_mut()).expect("nobody disturbed it");
        assert!(matches!(selection.check_end(&[]), Err(Error::Length { .. })));
    }

    /// Every pass has several pieces, and there are more blocks than the machine has at a time.
    #[test]
    fn pieces_are_many() {
        let device = |compute, seed| {
            let machine = Machine::new(compute, seed);
            Device::from_cuda(Cuda::with_driver(Arc::new(machine), None).expect("an artifact that fits"))
        };
        let x = selections::MISLEADING[0].1(600_011);
        all([selections::against_cpu(&device((9, 0), 5), &TopK::fraction(0.01), "the sample is huge", &x)]);

        // Some segments' samples are wrong, some right, some without ties; of others all is kept, or nothing.
        let lens = [300_003, 100_001, 8193, 20_000, 9999, 200_011];
        let right = cases::normal(lens.iter().sum(), 3);
        let mut x = selections::misleading_in(right.clone(), &lens, |v| 1e6 * (v.abs() + 1.0));
        let second = lens[0]..lens[0] + lens[1];
        x[second.clone()].copy_from_slice(&right[second]);
        let keep = |(i, len): (usize, usize)| [len / 100, len / 50, len / 9, 0, len, len / 1000][i] as u64;
        let segments: Vec<_> = lens
            .iter()
            .enumerate()
            .map(|(i, len)| gradwire::Segment { elements: *len as u64, k: keep((i, *len)) })
            .collect();
        let codec = TopK::segments(&segments);
        all([selections::against_cpu(&device((7, 0), 6), &codec, "some segments' samples are wrong", &x)]);
    }

    /// Devices that promise nothing of blocks that wait have a launch for each pass, and refuse one in which they
    /// would.
    #[test]
    fn blocks_wait_where_they_may() {
        let x = cases::normal(20_000, 3);
        let launches = |compute: (u32, u32)| {
            let machine = Arc::new(Machine::new(compute, 1).counting());
            let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).expect("an artifact that fits"));
            let [here, expected] = [&device, &Device::cpu()].map(|d| {
                d.encode_sparse(&TopK::fraction(0.01), Gradient::F32(&x), Seed::new(1)).expect("it is selected")
            });
            assert!(here.as_bytes() == expected.as_bytes(), "{compute:?}: not what the CPU selects");
            (device.limits(), machine.take_launched().into_iter().map(|l| l.kernel).collect::<Vec<_>>())
        };
        let (limits, apart) = launches((6, 1));
        assert!(!limits.forward_progress && apart.iter().all(|kernel| kernel != "topk_rest"), "{apart:?}");
        let (newer, together) = launches((7, 0));
        assert!(newer.forward_progress);
        assert_eq!(together, ["topk_sample", "topk_filter", "topk_rest", "topk_emit"]);

        let selection = TopK::fraction(0.01).selection(x.len(), Dtype::F32, false, &newer).expect("it is planned");
        let cuda = Cuda::with_driver(Arc::new(Machine::new((6, 1), 1)), None).expect("an artifact that fits");
        let older = Device::from_cuda(cuda);
        let mut session = older.session(selection.sizes()).expect("there is room");
        // SAFETY: the session refuses them before it looks at anything.
        let error = unsafe { session.run_trusted(selection.passes()) }.expect_err("planned for another device");
        assert!(matches!(error, Error::Unavailable { backend: BackendKind::Cuda, .. }), "{error:?}");
        assert!(error.to_string().contains("plan them by this one's limits"), "{error}");
    }

    #[test]
    fn a_residual_is_taken_off_late() {
        for (number, compute) in [(6, 0), (7, 0), (9, 0)].into_iter().enumerate() {
            let machine = Arc::new(Machine::new(compute, 3));
            let device = Device::from_cuda(Cuda::with_driver(machine, None).expect("an artifact that fits"));
            if Depth::of_tests().sweeps() {
                all([0, 1, 1000, 50_001].map(|n| selections::lazily(&device, n)));
            } else {
                // The settings that take long are shared out, and one device has its turn.
                all([0, 1, 1000].map(|n| selections::lazily(&device, n)));
                if Depth::of_tests().takes(number, 3) {
                    all([selections::lazily_in_turn(&device, 50_001, number, 3)]);
                }
            }
        }
    }

    /// The order of warps decides which tiles find room, and nothing else.
    #[test]
    fn misleading_gradients_in_any_order() {
        // With a launch for each pass, and with one for most.
        for (number, (compute, seed)) in [((6, 0), 1), ((7, 0), 1), ((9, 0), 2)].into_iter().enumerate() {
            let machine = Arc::new(Machine::new(compute, seed));
            misled(&Device::from_cuda(Cuda::with_driver(machine, None).expect("an artifact that fits")), number);
        }
    }

    /// Races are looked for where there are as many steps and fewer tiles. The first input has no path of its own
    /// beside the second, but that its tiles are all of one segment.
    #[test]
    fn tiles_are_many() {
        let whole = Depth::of_tests().sweeps();
        let machine = Machine::new((9, 0), 3);
        let machine = Arc::new(if whole { machine } else { machine.trusting() });
        let device = Device::from_cuda(Cuda::with_driver(machine, None).expect("an artifact that fits"));
        sums_of_sums(&device, if whole { 0..3 } else { 1..3 });
    }

    #[test]
    fn lengths_around_every_boundary() {
        // Whatever the order in which warps run, there is one answer.
        for (compute, seed) in [((6, 0), 1), ((7, 0), 2)] {
            let machine = Arc::new(Machine::new(compute, seed));
            lengths(&Device::from_cuda(Cuda::with_driver(machine, None).expect("an artifact that fits")));
        }
    }
}

#[cfg(feature = "wgpu")]
mod webgpu {
    use gradwire::backend::wgpu::Wgpu;
    use gradwire::plan::Limits;

    use super::*;

    fn limited(binding_bytes: u64, groups: u32) -> Option<Device> {
        match require::open(BackendKind::Wgpu) {
            Ok(_) => {}
            Err(error) => {
                eprintln!("not tested: {error}");
                return None;
            }
        }
        let wgpu = Wgpu::open().expect("it was just opened");
        Some(Device::from_wgpu(wgpu.with_limits(Limits { binding_bytes, groups, ..Limits::NONE })))
    }

    #[test]
    fn lengths_around_every_boundary() {
        if let Some(device) = limited(u64::MAX, u32::MAX) {
            lengths(&device);
        }
    }

    #[test]
    fn tiles_are_many() {
        if let Some(device) = limited(u64::MAX, u32::MAX) {
            sums_of_sums(&device, 0..3);
        }
    }

    #[test]
    fn a_residual_is_taken_off_late() {
        if let Some(device) = limited(u64::MAX, u32::MAX) {
            all([0, 1, 1000].map(|n| selections::lazily(&device, n)));
            let turns = (0..3).filter(|turn| Depth::of_tests().takes(*turn, 3));
            all(turns.map(|turn| selections::lazily_in_turn(&device, 50_001, turn, 3)));
        }
    }

    #[test]
    fn the_sample_has_keys_of_its_ranks() {
        if let Some(device) = limited(u64::MAX, u32::MAX) {
            guesses(&device);
        }
    }

    #[test]
    fn misleading_gradients() {
        if let Some(device) = limited(u64::MAX, u32::MAX) {
            misled(&device, 0);
        }
    }

    #[test]
    fn passes_that_wait_are_refused() {
        let Some(device) = limited(u64::MAX, u32::MAX) else { return };
        let promised = Limits { forward_progress: true, ..device.limits() };
        let selection = TopK::count(9).selection(20_000, Dtype::F32, false, &promised).expect("it is planned");
        let mut session = device.session(selection.sizes()).expect("there is room");
        // SAFETY: the session refuses them before it looks at anything.
        let error = unsafe { session.run_trusted(selection.passes()) }.expect_err("WebGPU promises nothing");
        assert!(matches!(error, Error::Unavailable { backend: BackendKind::Wgpu, .. }), "{error:?}");
    }

    #[test]
    fn a_gradient_is_bound_in_parts() {
        if let Some(device) = limited(4 << 20, 64) {
            all([selections::in_parts(&device, 2_000_003)]);
        }
    }

    #[test]
    fn limits_that_are_too_small_are_typed_errors() {
        let Some(device) = limited(1 << 20, 50) else { return };
        let x = cases::normal(2_000_000, 7);
        let mut residual = vec![1.0; x.len()];
        let error = device
            .encode_sparse_with_feedback(&TopK::fraction(0.5), &x, &mut residual, Seed::new(1))
            .expect_err("a million entries are 4 MB");
        assert!(matches!(error, Error::Limit { found: 1_048_576, .. }), "{error:?}");
        assert!(residual.iter().all(|v| *v == 1.0), "the residual is as it was");
    }
}
