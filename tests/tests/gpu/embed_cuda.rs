//! Encoding and decoding on a caller's stream in a caller's memory, on the PTX machine.

use std::sync::Arc;

use gradwire::backend::cuda::artifacts::FAMILIES;
use gradwire::backend::cuda::driver::{DevicePtr, Driver, StreamId};
use gradwire::backend::cuda::{Cuda, DeviceSlice};
use gradwire::embed::{
    Decode, DecodeBuffers, DecodeRandom, DecodeRandomBuffers, Encode, EncodeBuffers, EncodeRandom, EncodeRandomBuffers,
    Scatter, ScatterBuffers, Select, SelectBuffers,
};
use gradwire::plan::Limits;
use gradwire::{
    Codec, CodecFamily, DecodeMode, DecodePlan, Device, Dtype, Error, Gradient, NonFinite, Qsgd, RandomK, Seed,
    Segment, Selection, SparsePayload, TopK, Uniform,
};
use gradwire_ptx_machine::Machine;
use gradwire_tests::capture::{Capture, ELSEWHERE, HOST, STREAM};
use gradwire_tests::cases::{self, Quantizer};
use half::{bf16, f16};

/// A device, and the memory of a caller on it.
struct Caller {
    driver: Arc<Capture<Machine>>,
    cuda: Cuda,
}

impl Caller {
    fn new() -> Self {
        let driver = Arc::new(Capture::new(Machine::new((7, 0), 7)));
        let cuda = Cuda::with_driver(driver.clone(), None).expect("the machine takes the artifact");
        cuda.warm_up(&CodecFamily::ALL).expect("the machine takes them all");
        Self { driver, cuda }
    }

    /// Memory that nothing has written.
    fn room(&self, bytes: u64) -> DeviceSlice {
        DeviceSlice::new(self.driver.alloc(bytes).expect("there is memory").0, bytes)
    }

    fn holding(&self, bytes: &[u8]) -> DeviceSlice {
        let room = self.room(bytes.len() as u64);
        // SAFETY: the machine checks ranges itself, and copies at once.
        unsafe { self.driver.copy_in(DevicePtr(room.address()), bytes, StreamId::OWN) }.expect("it fits");
        room
    }

    fn read(&self, slice: DeviceSlice, bytes: u64) -> Vec<u8> {
        let mut out = vec![0; bytes as usize];
        // SAFETY: as above.
        unsafe { self.driver.copy_out(&mut out, DevicePtr(slice.address()), StreamId::OWN) }.expect("it was written");
        out
    }
}

fn f32s(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

fn codecs() -> Vec<Quantizer> {
    vec![
        Quantizer::Qsgd(Qsgd::bits(8)),
        Quantizer::Qsgd(Qsgd::bits(4).bucket(32).non_finite(NonFinite::Error)),
        Quantizer::Qsgd(Qsgd::bits(8).l2().whole_tensor().contractive().non_finite(NonFinite::Error)),
        Quantizer::Uniform(Uniform::bits(8).bucket(8192).contractive()),
        Quantizer::Uniform(Uniform::bits(5).whole_tensor().contractive()),
    ]
}

#[test]
fn what_a_stream_leaves_is_what_a_cpu_encodes_and_decodes() {
    let caller = Caller::new();
    let (n, cpu) = (20_000, Device::cpu());
    let x = cases::normal(n, 5);
    let halves: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    for codec in codecs() {
        for gradient in [Gradient::F32(&x), Gradient::Bf16(&halves)] {
            let plan = codec.plan(n, gradient.dtype()).expect("a valid setting").with_feedback().expect("it contracts");
            let before = cases::normal(n, 6);
            let mut residual = before.clone();
            let expected =
                cpu.encode_with_feedback(&codec, gradient, &mut residual, cases::seed()).expect("the CPU encodes");

            let buffers = EncodeBuffers {
                gradient: caller.holding(gradient.as_bytes()),
                residual: Some(caller.holding(bytemuck::cast_slice(&before))),
                body: caller.room(plan.header().body_bytes()),
                workspace: Some(caller.room(plan.workspace_bytes())),
            };
            // SAFETY: the machine's streams run at once, and the memory lives as long as it.
            let encode = || unsafe { caller.cuda.queue(Encode { plan: &plan, seed: cases::seed() }, buffers) };
            let (result, queued) = caller.driver.while_armed(encode);
            result.expect("a capture allows all of it");
            assert!(!queued.is_empty());

            if plan.is_guarded() {
                let found = caller.read(buffers.workspace.expect("given"), 4);
                plan.check_workspace(&found).expect("all is finite");
            }
            let h = *plan.header();
            // What lies between scalars and codes was not written, and nobody reads it.
            let scalars = caller.read(buffers.body, h.scalar_bytes());
            let codes = DeviceSlice::new(buffers.body.address() + h.codes_offset(), h.code_bytes());
            let mut body = vec![0; h.body_bytes() as usize];
            body[..scalars.len()].copy_from_slice(&scalars);
            let codes = caller.read(codes, h.code_bytes());
            body[h.codes_offset() as usize..][..codes.len()].copy_from_slice(&codes);
            assert_eq!(h.seal(&body).expect("of that length"), expected, "{codec:?}");
            let left = caller.read(buffers.residual.expect("given"), 4 * n as u64);
            assert_eq!(f32s(&left), f32s(bytemuck::cast_slice(&residual)), "{codec:?}");

            // Three bodies, as an all-gather leaves them.
            let others: Vec<_> = (0..2)
                .map(|w| cpu.encode(&codec, &cases::normal(n, 20 + w)[..], Seed::new(w)).expect("encodes"))
                .collect();
            let all = [expected.clone(), others[0].clone(), others[1].clone()];
            if gradient.dtype() == Dtype::F32 {
                let decode = DecodePlan::new(h, 3);
                let mut bodies = vec![0; 3 * h.body_bytes() as usize];
                decode.write_bodies(&all, &mut bodies).expect("of one kind");
                let buffers =
                    DecodeBuffers { bodies: caller.holding(&bodies), output: caller.holding(bytemuck::cast_slice(&x)) };
                let mut sum = x.clone();
                for (mode, payloads) in [(DecodeMode::Sum(0.25), 3), (DecodeMode::Add(0.5), 1), (DecodeMode::Write, 1)]
                {
                    let decode = DecodePlan::new(h, payloads);
                    // SAFETY: as above.
                    let work = || unsafe { caller.cuda.queue(Decode { plan: &decode, mode }, buffers) };
                    caller.driver.while_armed(work).0.expect("a capture allows all of it");
                    match mode {
                        DecodeMode::Sum(w) => cpu.decode_sum(&all, w, &mut sum),
                        DecodeMode::Add(w) => cpu.decode_add(&all[0], w, &mut sum),
                        DecodeMode::Write => cpu.decode_into(&all[0], &mut sum),
                    }
                    .expect("the CPU decodes");
                    let got = caller.read(buffers.output, 4 * n as u64);
                    assert_eq!(f32s(&got), f32s(bytemuck::cast_slice(&sum)), "{codec:?} {mode:?}");
                }
            }
        }
    }
    assert_eq!(caller.driver.inner().take_faults(), []);
}

#[test]
fn work_goes_to_the_stream_that_was_named_and_modules_are_loaded_once() {
    let caller = Caller::new();
    // SAFETY: the driver takes it for a number.
    let other = unsafe { caller.cuda.on_stream(STREAM as *mut _) }.expect("a stream of this context");
    let plan = Qsgd::bits(8).plan(1000, Dtype::F32).expect("a valid setting");
    let buffers = EncodeBuffers {
        gradient: caller.holding(bytemuck::cast_slice(&cases::normal(1000, 1))),
        residual: None,
        body: caller.room(plan.header().body_bytes()),
        workspace: None,
    };
    for (cuda, stream) in [(&caller.cuda, 0), (&other, STREAM)] {
        // SAFETY: the machine's streams run at once.
        let work = || unsafe { cuda.queue(Encode { plan: &plan, seed: Seed::new(1) }, buffers) };
        let (result, queued) = caller.driver.while_armed(work);
        result.expect("it encodes");
        assert_eq!(queued, [stream]);
    }
    let loaded: Vec<_> = caller.cuda.loaded().into_iter().map(|family| family.name).collect();
    // All but what older devices take in place of a launch whose blocks wait for one another.
    let wanted: Vec<_> = FAMILIES.iter().map(|family| family.name).filter(|name| *name != "topk_launches").collect();
    assert_eq!(loaded, wanted);
    assert_eq!(caller.driver.modules(), loaded.len() as u64, "each once");
    // SAFETY: as above.
    let error = unsafe { caller.cuda.on_stream(0xbad0 as *mut _) }.expect_err("a stream of another context");
    assert!(matches!(error, Error::Stream { address: 0xbad0, .. }), "{error:?}");
    assert!(error.to_string().contains("Cuda::from_raw"), "{error}");
}

#[test]
fn a_null_context_or_no_driver_is_an_error() {
    // SAFETY: null is no context, and is refused before it is used.
    let error = unsafe { Cuda::from_raw(std::ptr::null_mut(), std::ptr::null_mut()) }.expect_err("there is none");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[test]
fn what_is_wrong_with_memory_is_said_before_anything_is_queued() {
    let caller = Caller::new();
    let codec = Qsgd::bits(8).whole_tensor().non_finite(NonFinite::Error);
    let plan = codec.plan(1000, Dtype::F32).expect("a valid setting").with_feedback().expect("omega is below 1");
    let (body, workspace) = (plan.header().body_bytes(), plan.workspace_bytes());
    let good = EncodeBuffers {
        gradient: caller.room(4000),
        residual: Some(caller.room(4000)),
        body: caller.room(body),
        workspace: Some(caller.room(workspace)),
    };
    let short = |s: DeviceSlice| DeviceSlice::new(s.address(), s.bytes() - 1);
    let at = |address, bytes| DeviceSlice::new(address, bytes);
    let freed = caller.room(4000);
    // SAFETY: nothing uses it.
    unsafe { caller.driver.free(DevicePtr(freed.address())) };
    let residual = good.residual.expect("given");
    let between = good.workspace.map(|s| at(s.address() + 8, s.bytes()));
    let cases: [(&str, EncodeBuffers<DeviceSlice>, &[&str]); 13] = [
        ("a short gradient", EncodeBuffers { gradient: short(good.gradient), ..good }, &["gradient", "3999", "4000"]),
        ("a short workspace", EncodeBuffers { workspace: good.workspace.map(short), ..good }, &["workspace", "bytes"]),
        ("a short body", EncodeBuffers { body: short(good.body), ..good }, &["body"]),
        ("a short residual", EncodeBuffers { residual: Some(short(residual)), ..good }, &["residual"]),
        (
            "no residual",
            EncodeBuffers { residual: None, ..good },
            &["feedback", "no residual was handed over", "4000 bytes"],
        ),
        ("no workspace", EncodeBuffers { workspace: None, ..good }, &["workspace", "holds 0 bytes"]),
        ("a misaligned workspace", EncodeBuffers { workspace: between, ..good }, &["workspace", "multiple of 16"]),
        ("misaligned", EncodeBuffers { body: at(good.body.address() + 2, body), ..good }, &["body", "multiple of 4"]),
        (
            "beyond its end",
            EncodeBuffers { body: at(good.body.address() + 4, body), ..good },
            &["end of its allocation"],
        ),
        ("host memory", EncodeBuffers { gradient: at(HOST, 4000), ..good }, &["gradient", "host memory"]),
        ("another device's", EncodeBuffers { gradient: at(ELSEWHERE, 4000), ..good }, &["device 1"]),
        ("freed", EncodeBuffers { gradient: freed, ..good }, &["no memory that"]),
        ("in place", EncodeBuffers { residual: Some(good.gradient), ..good }, &["residual", "overlaps the gradient"]),
    ];
    for (what, buffers, words) in cases {
        // SAFETY: nothing is queued.
        let work = || unsafe { caller.cuda.queue(Encode { plan: &plan, seed: Seed::new(1) }, buffers) };
        let (result, queued) = caller.driver.while_armed(work);
        let error = result.expect_err(what);
        assert!(
            matches!(error, Error::Length { .. } | Error::NoResidual { .. } | Error::Memory { .. }),
            "{what}: {error:?}"
        );
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{what}: {error}");
        assert!(queued.is_empty(), "{what}");
    }
}

#[test]
fn payloads_that_a_plan_does_not_decode_are_refused() {
    let cpu = Device::cpu();
    let payload = |codec: Quantizer, n| cpu.encode(&codec, &vec![1.0f32; n], Seed::new(1)).expect("encodes");
    let mine = payload(Quantizer::Qsgd(Qsgd::bits(4)), 1000);
    let plan = DecodePlan::new(*mine.header(), 2);
    let mut bodies = vec![0xaa; 2 * mine.header().body_bytes() as usize];
    for (other, what) in [
        (payload(Quantizer::Uniform(Uniform::bits(4)), 1000), "codec"),
        (payload(Quantizer::Qsgd(Qsgd::bits(8)), 1000), "code width"),
        (payload(Quantizer::Qsgd(Qsgd::bits(4)), 1001), "length"),
    ] {
        let error = plan.write_bodies(&[mine.clone(), other], &mut bodies).expect_err("of another kind");
        assert!(matches!(error, Error::Other { index: 1, what: w } if w == what), "{error:?}");
        assert!(bodies.iter().all(|b| *b == 0xaa), "nothing was written");
    }
    assert!(plan.write_bodies(std::slice::from_ref(&mine), &mut bodies).is_err());
    assert!(plan.write_bodies(&[mine.clone(), mine.clone()], &mut bodies[1..]).is_err());
    assert!(mine.header().seal(&bodies[1..]).is_err());
}

#[test]
fn an_element_that_is_not_finite_is_told_through_the_workspace() {
    let caller = Caller::new();
    let plan = Qsgd::bits(8).non_finite(NonFinite::Error).plan(1000, Dtype::F32).expect("a valid setting");
    let plan = plan.with_feedback().expect("omega is below 1");
    let mut x = cases::normal(1000, 1);
    x[777] = f32::INFINITY;
    let residual = cases::normal(1000, 2);
    let buffers = EncodeBuffers {
        gradient: caller.holding(bytemuck::cast_slice(&x)),
        residual: Some(caller.holding(bytemuck::cast_slice(&residual))),
        body: caller.room(plan.header().body_bytes()),
        workspace: Some(caller.room(plan.workspace_bytes())),
    };
    // SAFETY: the machine's streams run at once.
    unsafe { caller.cuda.queue(Encode { plan: &plan, seed: Seed::new(1) }, buffers) }.expect("queued");
    let error = plan.check_workspace(&caller.read(buffers.workspace.expect("given"), 4)).expect_err("it is infinite");
    assert!(matches!(error, Error::NotFinite { index: 777 }), "{error:?}");
    let left = caller.read(buffers.residual.expect("given"), 4000);
    assert_eq!(f32s(&left), f32s(bytemuck::cast_slice(&residual)));
    assert!(plan.check_workspace(&[1, 0]).is_err());
}

/// What a selection that is queued as into a capture leaves of the gradient in a caller's memory.
fn selected(caller: &Caller, selection: &Selection, buffers: SelectBuffers<DeviceSlice>) -> SparsePayload {
    let workspace = DevicePtr(buffers.workspace.address());
    // SAFETY: the machine checks ranges itself, and copies at once.
    unsafe { caller.driver.copy_in(workspace, &selection.table(), StreamId::OWN) }.expect("it fits");
    // SAFETY: the machine's streams run at once, and the memory lives as long as it.
    let select = || unsafe { caller.cuda.queue(Select(selection), buffers) };
    caller.driver.while_armed(select).0.expect("a capture allows all of it");
    let bytes = 4 * selection.entries();
    let indices: Vec<u32> = f32s(&caller.read(buffers.indices, bytes));
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(&caller.read(buffers.values, bytes));
    selection.seal(&indices, &values).expect("entries that rise")
}

#[test]
fn entries_selected_on_a_stream_are_those_of_a_cpu() {
    let caller = Caller::new();
    let (n, cpu) = (30_000, Device::cpu());
    let clean = cases::normal(n, 3);
    let mut x = clean.clone();
    x[1234] = f32::NAN;
    let halves: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    let layers = [Segment { elements: 20_000, k: 100 }, Segment { elements: 10_000, k: 777 }];
    for codec in [TopK::fraction(0.01), TopK::segments(&layers), TopK::blocks(100, 3)] {
        // Of a step that is not finite the host leaves the residual, and what is queued does not.
        for (gradient, feedback, leaves) in [
            (Gradient::F32(&clean), true, false),
            (Gradient::F32(&x), true, true),
            (Gradient::Bf16(&halves), false, true),
        ] {
            let selection = codec.selection(n, gradient.dtype(), feedback, &caller.cuda.limits()).expect("valid");
            let before = cases::normal(n, 4);
            let mut residual = before.clone();
            let expected = if feedback {
                cpu.encode_sparse_with_feedback(&codec, gradient, &mut residual, Seed::new(1))
            } else {
                cpu.encode_sparse(&codec, gradient, Seed::new(1))
            }
            .expect("the CPU selects");
            let entries = selection.entries();
            let buffers = SelectBuffers {
                gradient: caller.holding(gradient.as_bytes()),
                residual: feedback.then(|| caller.holding(bytemuck::cast_slice(&before))),
                indices: caller.room(4 * entries),
                values: caller.room(4 * entries),
                workspace: caller.room(selection.workspace_bytes()),
            };
            let payload = selected(&caller, &selection, buffers);
            assert_eq!(payload.as_bytes(), expected.as_bytes(), "{codec:?}, {}", gradient.dtype().name());
            if let Some(left) = buffers.residual.filter(|_| !leaves) {
                assert_eq!(f32s(&caller.read(left, 4 * n as u64)), f32s(bytemuck::cast_slice(&residual)), "{codec:?}");
            }
            let output = caller.holding(bytemuck::cast_slice(&before));
            let to = ScatterBuffers { indices: buffers.indices, values: buffers.values, output };
            let mut sum = before.clone();
            for weight in [Some(0.5), None] {
                // SAFETY: as above.
                let work = || unsafe { caller.cuda.queue(Scatter { entries, elements: n as u64, weight }, to) };
                caller.driver.while_armed(work).0.expect("a capture allows all of it");
                match weight {
                    Some(weight) => cpu.decode_sparse_add(&expected, weight, &mut sum),
                    None => cpu.decode_sparse_into(&expected, &mut sum),
                }
                .expect("the CPU decodes");
                assert_eq!(f32s(&caller.read(output, 4 * n as u64)), f32s(bytemuck::cast_slice(&sum)), "{codec:?}");
            }
        }
    }
    assert_eq!(caller.driver.inner().take_faults(), []);
}

/// A gradient may begin at any element of a caller's memory, and a segment at any element of a gradient: what is read
/// 16 bytes at a time where that can be is the same where it cannot.
#[test]
fn entries_drawn_on_a_stream_are_those_of_a_cpu() {
    let caller = Caller::new();
    let (n, cpu, seed) = (3000, Device::cpu(), Seed::new(1).step(5).tensor(2));
    let [mut clean, mut clean_before] = [3, 4].map(|seed| cases::normal(n, seed));
    (clean[14], clean_before[14]) = (-0.0, -0.0);
    let (mut odd, mut odd_before) = (clean.clone(), clean_before.clone());
    (odd[12], odd[13]) = (f32::from_bits(0xffc1_2345), f32::INFINITY);
    (odd_before[12], odd_before[15], odd_before[16]) = (1.0, f32::NEG_INFINITY, f32::from_bits(0x7f81_2345));
    let codecs = [RandomK::fraction(0.1), RandomK::count(n as u64), RandomK::fraction(0.7).unbiased()];
    let with = codecs.into_iter().flat_map(|codec| [(codec, true, false), (codec, true, true)]);
    let without = [(RandomK::count(77), false, true), (RandomK::fraction(0.01).unbiased(), false, true)];
    for (codec, feedback, is_odd) in with.chain(without) {
        let (x, before) = if is_odd { (&odd, &odd_before) } else { (&clean, &clean_before) };
        let label = format!("{codec:?}, {feedback}, {is_odd}");
        let mut residual = before.clone();
        let expected = match feedback {
            true => cpu.encode_random_with_feedback(&codec, x, &mut residual, seed),
            false => cpu.encode_random(&codec, x, seed),
        };
        let expected = expected.expect(&label);
        let entries = codec.entries(n as u64).expect("valid");
        let buffers = EncodeRandomBuffers {
            gradient: caller.holding(bytemuck::cast_slice(x)),
            residual: feedback.then(|| caller.holding(bytemuck::cast_slice(before))),
            values: caller.room(4 * entries),
        };
        let encode = EncodeRandom { codec, elements: n as u64, feedback, seed };
        // SAFETY: the machine's streams run at once, and the memory lives as long as it.
        let work = || unsafe { caller.cuda.queue(encode, buffers) };
        caller.driver.while_armed(work).0.expect("a capture allows all of it");
        let found = caller.read(buffers.values, 4 * entries);
        assert_eq!(f32s(&found), f32s(bytemuck::cast_slice(&expected)), "{label}");
        assert_eq!(caller.read(buffers.gradient, 4 * n as u64), bytemuck::cast_slice::<f32, u8>(x), "{label}");
        // Of a step that is not finite the host leaves the residual, and what is queued does not.
        if let Some(left) = buffers.residual.filter(|_| !is_odd) {
            assert_eq!(f32s(&caller.read(left, 4 * n as u64)), f32s(bytemuck::cast_slice(&residual)), "{label}");
        }
        let buffers = DecodeRandomBuffers { values: buffers.values, output: caller.holding(bytemuck::cast_slice(x)) };
        let mut sum = x.clone();
        for weight in [Some(-0.3), None] {
            let decode = DecodeRandom { codec, elements: n as u64, weight, seed };
            // SAFETY: as above.
            let work = || unsafe { caller.cuda.queue(decode, buffers) };
            caller.driver.while_armed(work).0.expect("a capture allows all of it");
            match weight {
                Some(weight) => cpu.decode_random_add(&codec, &expected, weight, &mut sum, seed).expect(&label),
                None => sum = cpu.decode_random(&codec, &expected, n, seed).expect(&label),
            }
            let found = caller.read(buffers.output, 4 * n as u64);
            assert_eq!(f32s(&found), f32s(bytemuck::cast_slice(&sum)), "{label}, {weight:?}");
        }
    }
    let room = || caller.room(4000);
    let queue = |codec, elements, residual| {
        let work = EncodeRandom { codec, elements, feedback: true, seed };
        let buffers = EncodeRandomBuffers { gradient: room(), residual, values: room() };
        // SAFETY: nothing is queued.
        unsafe { caller.cuda.queue(work, buffers) }.expect_err("refused")
    };
    assert!(matches!(queue(RandomK::count(1001), 1000, Some(room())), Error::Keep { .. }));
    assert!(matches!(queue(RandomK::count(500).unbiased(), 1000, Some(room())), Error::FeedbackDiverges { .. }));
    assert!(matches!(queue(RandomK::count(500), 1000, None), Error::NoResidual { .. }));
    assert!(matches!(queue(RandomK::count(500), 1001, Some(room())), Error::Length { what: "gradient", .. }));
    assert_eq!(caller.driver.inner().take_faults(), []);
}

#[test]
fn entries_of_a_gradient_that_begins_anywhere_are_those_of_a_cpu() {
    let caller = Caller::new();
    let (n, cpu) = (40_001, Device::cpu());
    let mut x = cases::normal(n, 5);
    x[1234] = f32::NAN;
    let bf16s: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    let f16s: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
    let layers = [Segment { elements: 20_003, k: 100 }, Segment { elements: 19_998, k: 6000 }];
    for codec in [TopK::fraction(0.001), TopK::fraction(0.3), TopK::segments(&layers)] {
        for gradient in [Gradient::F32(&x), Gradient::Bf16(&bf16s), Gradient::F16(&f16s)] {
            let selection = codec.selection(n, gradient.dtype(), false, &caller.cuda.limits()).expect("valid");
            let expected = cpu.encode_sparse(&codec, gradient, Seed::new(1)).expect("the CPU selects");
            let entries = selection.entries();
            let size = gradient.as_bytes().len() / n;
            for before in [0, 1, 2, 3, 8] {
                let room = caller.holding(&[&vec![0xff; before * size], gradient.as_bytes()].concat());
                let at = room.address() + (before * size) as u64;
                let buffers = SelectBuffers {
                    gradient: DeviceSlice::new(at, gradient.as_bytes().len() as u64),
                    residual: None,
                    indices: caller.room(4 * entries),
                    values: caller.room(4 * entries),
                    workspace: caller.room(selection.workspace_bytes()),
                };
                let payload = selected(&caller, &selection, buffers);
                let label = format!("{codec:?}, {}, {before} elements in front", gradient.dtype().name());
                assert_eq!(payload.as_bytes(), expected.as_bytes(), "{label}");
            }
        }
    }
    assert_eq!(caller.driver.inner().take_faults(), []);
}

#[test]
fn entries_that_are_no_selection_are_not_sealed() {
    let selection = TopK::count(3).selection(10, Dtype::F32, false, &Limits::NONE).expect("valid");
    let seal = |indices: &[u32], values: &[f32]| selection.seal(indices, values);
    assert!(seal(&[1, 2, 9], &[1.0; 3]).is_ok());
    for (indices, words) in [([1, 1, 2], "index 1"), ([3, 2, 4], "index 1"), ([1, 2, 10], "index 2")] {
        let error = seal(&indices, &[1.0; 3]).expect_err("no selection");
        assert!(matches!(error, Error::Payload(_)) && error.to_string().contains(words), "{error}");
    }
    assert!(matches!(seal(&[1, 2], &[1.0; 3]), Err(Error::Length { .. })));
    assert!(matches!(seal(&[1, 2, 3], &[1.0; 2]), Err(Error::Length { .. })));
    let rounded = TopK::count(3).values(Dtype::F16).selection(10, Dtype::F32, false, &Limits::NONE).expect("valid");
    assert!(matches!(rounded.seal(&[1, 2, 3], &[1.0; 3]), Err(Error::NotExact)));
    // A half that is not a number keeps its bits.
    let halves = TopK::count(2).selection(10, Dtype::F16, false, &Limits::NONE).expect("valid");
    let x: Vec<half::f16> = [0u16, 0x7d55, 0xc123, 0, 0, 0, 0, 0, 0, 0].map(half::f16::from_bits).to_vec();
    let expected = Device::cpu().encode_sparse(&TopK::count(2), &x, Seed::new(1)).expect("it selects");
    let values = Device::cpu().decode_sparse(&expected).expect("it decodes");
    let nan = f32::from_bits((0x7d55 & 0x3ff) << 13 | 0x7f80_0000);
    assert_eq!(halves.seal(&[1, 2], &[nan, values[2]]).expect("rising").as_bytes(), expected.as_bytes());
}
