//! Many tensors at once: on the CPU, the PTX machine and wgpu, in a caller's memory, with small limits, and bad input.

use gradwire::plan::Limits;
use gradwire::{Device, Dtype, Error, Layout, ModelPlan, Qsgd, Seed, TensorSpan, Uniform};
use gradwire_tests::{cases, models};

fn checks(device: &Device) {
    let layout = models::awkward();
    for case in models::settings() {
        models::against_cpu(device, &case, &layout).unwrap_or_else(|e| panic!("{device}: {e}"));
    }
    models::refuses_not_finite(device).unwrap_or_else(|e| panic!("{device}: {e}"));
}

/// The tensors of a real model, each of them one bucket.
fn a_model_of_whole_tensors(device: &Device) {
    let layout = models::narrow_resnet50();
    for case in models::settings().into_iter().filter(|case| case.bucket.is_none()) {
        models::against_cpu(device, &case, &layout).unwrap_or_else(|e| panic!("{device}: {e}"));
    }
}

#[test]
fn on_the_cpu() {
    checks(&Device::cpu());
    a_model_of_whole_tensors(&Device::cpu());
}

#[test]
fn bad_layouts_and_buffers_are_refused() {
    let span = |offset, elements| TensorSpan { offset, elements };
    let error = Layout::new(vec![span(10, 5), span(0, 11), span(20, 1)]).expect_err("element 10 is in both");
    assert!(matches!(error, Error::Overlap { first: 1, second: 0, element: 10 }), "{error:?}");
    Layout::new(vec![span(10, 5), span(0, 10), span(3, 0)]).expect("an empty tensor overlaps nothing");
    for spans in [vec![span(1 << 31, 1)], vec![span(u64::MAX, 5)], vec![span(0, u64::MAX)]] {
        assert!(matches!(Layout::new(spans), Err(Error::TooLong { .. })));
    }
    assert!(matches!(Layout::from_shapes([&[u64::MAX, 2][..]]), Err(Error::TooLong { .. })));

    let layout = Layout::packed([100, 200]).expect("small");
    let cpu = Device::cpu();
    assert!(matches!(cpu.model_plan(&Qsgd::bits(4).bucket(33), &layout, Dtype::F32), Err(Error::Bucket { got: 33 })));
    let plan = cpu.model_plan(&Qsgd::bits(4), &layout, Dtype::F32).expect("valid");
    assert!(matches!(plan.clone().with_feedback(), Err(Error::FeedbackDiverges { .. })));
    let x = cases::normal(300, 1);
    let encode = |x: &[f32], residual: &mut [f32]| cpu.encode_model(&plan, x, residual, Seed::new(1));
    assert!(matches!(encode(&x[1..], &mut []), Err(Error::Length { what: "gradient", .. })));
    assert!(matches!(encode(&x, &mut [0.0; 300]), Err(Error::NoFeedback { found: 300 })));
    let halves = vec![half::f16::ONE; 300];
    assert!(matches!(cpu.encode_model(&plan, &halves, &mut [], Seed::new(1)), Err(Error::Dtype { .. })));
    let payloads = encode(&x, &mut []).expect("it encodes");
    let mut out = vec![0.0; 300];
    let write = gradwire::DecodeMode::Write;
    assert!(matches!(cpu.decode_model(&plan, write, &[&payloads], &mut out[1..]), Err(Error::Length { .. })));
    assert!(matches!(cpu.decode_model(&plan, write, &[&payloads[1..]], &mut out), Err(Error::Length { .. })));
    let other = cpu.encode(&Uniform::bits(4), &x[100..], Seed::new(1)).expect("it encodes");
    let mixed = [payloads[0].clone(), other];
    let error = cpu.decode_model(&plan, write, &[&payloads, &mixed], &mut out).expect_err("of another codec");
    assert!(matches!(error, Error::Other { index: 1, what: "codec" }), "{error:?}");
    assert_eq!(out, vec![0.0; 300], "nothing was decoded");
}

#[test]
fn a_plan_has_no_more_launches_than_the_limits_ask_for() {
    let layout = Layout::from_shapes(models::resnet50().iter().map(Vec::as_slice)).expect("25 million elements");
    assert_eq!((layout.spans().len(), layout.elements()), (161, 25_557_032));
    let plan = |limits| ModelPlan::new(&Qsgd::bits(4), &layout, Dtype::F32, &limits);
    let launches = |limits| plan(limits).map(|plan| plan.launches());
    assert_eq!(launches(Limits::NONE).expect("no limit"), 1);
    // 3223 spans of 8192 elements or less, four workgroups each to decode.
    assert_eq!(launches(Limits { groups: 65535, ..Limits::NONE }).expect("they fit"), 1);
    assert_eq!(launches(Limits { binding_bytes: 64 << 20, groups: 65535, ..Limits::NONE }).expect("in halves"), 2);
    let small = Limits { binding_bytes: 1 << 20, groups: 65535, ..Limits::NONE };
    let of_small = launches(small).expect("in parts");
    assert!((98..130).contains(&of_small), "{of_small}: what 1 MiB holds is 2^18 elements");
    for limits in [Limits { binding_bytes: 1 << 14, ..Limits::NONE }, Limits { groups: 3, ..Limits::NONE }] {
        assert!(matches!(plan(limits), Err(Error::Limit { .. })), "{limits:?}");
    }
    // Statistics of 3223 spans and 161 tensors, and the table, lie in one binding.
    let whole = |binding_bytes| {
        let limits = Limits { binding_bytes, groups: 65535, ..Limits::NONE };
        ModelPlan::new(&Qsgd::bits(4).whole_tensor(), &layout, Dtype::F32, &limits)
    };
    assert_eq!(whole(128 << 20).expect("they fit").launches(), 1);
    assert_eq!(whole(128 << 20).expect("they fit").workspace_bytes(), 256 + 16 * 3223 + 8 * 161);
    assert!(matches!(whole(100 << 10), Err(Error::Limit { .. })));
}

#[test]
fn a_plan_of_nothing_needs_nothing() {
    for lengths in [vec![], vec![0, 0, 0]] {
        let tensors = lengths.len();
        let layout = Layout::packed(lengths).expect("small");
        let cpu = Device::cpu();
        let plan = cpu.model_plan(&Qsgd::bits(4).whole_tensor(), &layout, Dtype::F32).expect("valid");
        assert_eq!((plan.workspace_bytes(), plan.body_bytes(), plan.launches()), (0, 0, 0));
        let payloads = cpu.encode_model(&plan, &[0.0f32; 0], &mut [], Seed::new(1)).expect("it encodes");
        assert_eq!(payloads.len(), tensors);
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::sync::Arc;

    use gradwire::backend::cuda::driver::{DevicePtr, Driver, StreamId};
    use gradwire::backend::cuda::{Cuda, DeviceSlice};
    use gradwire::embed::{DecodeBuffers, DecodeModel, EncodeBuffers, EncodeModel, WithTable};
    use gradwire::{CodecFamily, DecodeMode, NonFinite};
    use gradwire_ptx_machine::Machine;
    use gradwire_tests::capture::Capture;

    use super::*;

    #[test]
    fn on_the_ptx_machine_at_every_target() {
        for version in [(3, 5), (6, 0), (7, 0), (8, 0), (9, 0)] {
            let machine = Arc::new(Machine::new(version, 11));
            let cuda = Cuda::with_driver(machine.clone(), None).expect("an artifact that fits");
            checks(&Device::from_cuda(cuda.clone()));
            if version == (8, 0) {
                a_model_of_whole_tensors(&Device::from_cuda(cuda));
            }
            assert_eq!(machine.take_faults(), []);
        }
    }

    /// The gradient twice, the codes once, and less than a tenth besides: the table's words, which are counted for each
    /// instruction of each warp that looks at them, though a cache has them after the first. Tensors
    /// begin at sectors, or every load would touch one more than it needs.
    #[test]
    fn tensors_of_one_bucket_move_what_they_have_to() {
        let machine = Arc::new(Machine::new((8, 0), 1).counting());
        let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).expect("an artifact that fits"));
        let layout = Layout::packed([100_000, 81_920, 0, 40_000, 300, 1]).expect("small");
        let n = layout.elements();
        for (codec, name) in [(Qsgd::bits(4).whole_tensor(), "max"), (Qsgd::bits(4).whole_tensor().l2(), "L2")] {
            let plan = device.model_plan(&codec, &layout, Dtype::F32).expect("valid");
            machine.take_launched();
            let x = cases::normal(n as usize, 1);
            device.encode_model(&plan, &x, &mut [], Seed::new(1)).expect("it encodes");
            let launched = machine.take_launched();
            let moved = |kernel: &str| {
                let found: Vec<_> = launched.iter().filter(|l| l.kernel == kernel).collect();
                let [launch] = found[..] else { panic!("{name}: {} launches of {kernel}", found.len()) };
                launch.counts.global().moved() as f64 / n as f64
            };
            assert_eq!(launched.len(), 3, "{name}");
            assert!(moved("qsgd_stats_segments") < 1.1 * 4.0, "{name}");
            assert!(moved("qsgd_combine_segments") < 0.05, "{name}");
            assert!(moved("qsgd_encode_tensors") < 1.1 * 4.5, "{name}");
        }
    }

    #[test]
    fn a_graph_of_one_launch_set_draws_anew_at_each_step() {
        let codec = Qsgd::bits(8).non_finite(NonFinite::Error);
        in_a_graph(&codec, 4, "a fill, a scan, an encode and a decode");
        let whole = codec.whole_tensor().l2().contractive();
        in_a_graph(&whole, 6, "a fill, a scan, statistics, their folding, an encode and a decode");
        in_a_graph(
            &Uniform::bits(4).whole_tensor().contractive(),
            4,
            "statistics, their folding, an encode and a decode",
        );
    }

    fn in_a_graph(codec: &impl gradwire::Codec, launches: usize, which: &str) {
        let driver = Arc::new(Capture::new(Machine::new((8, 0), 3)));
        let cuda = Cuda::with_driver(driver.clone(), None).expect("an artifact that fits");
        cuda.warm_up(&CodecFamily::ALL).expect("the machine takes them all");
        let room = |bytes: u64| DeviceSlice::new(driver.alloc(bytes).expect("there is memory").0, bytes);
        // SAFETY: the machine checks ranges itself, and copies at once.
        let put = |to: DeviceSlice, bytes: &[u8]| unsafe {
            driver.copy_in(DevicePtr(to.address()), bytes, StreamId::OWN).expect("it fits");
        };
        let get = |from: DeviceSlice, at: u64, bytes: u64| {
            let mut out = vec![0; bytes as usize];
            // SAFETY: as above.
            unsafe { driver.copy_out(&mut out, DevicePtr(from.address() + at), StreamId::OWN) }.expect("written");
            out
        };
        let layout = models::awkward();
        let plan = ModelPlan::new(codec, &layout, Dtype::F32, &Limits::NONE).expect("valid");
        let plan = plan.with_feedback().expect("omega is below 1");
        let n = layout.elements() as usize;
        let x = cases::normal(n, 1);
        let bytes = 4 * n as u64;
        let buffers = EncodeBuffers {
            gradient: room(bytes),
            residual: Some(room(bytes)),
            body: room(plan.body_bytes()),
            workspace: Some(room(plan.workspace_bytes())),
        };
        let (table, output) = (room(plan.table_bytes()), room(bytes));
        put(buffers.gradient, bytemuck::cast_slice(&x));
        put(buffers.residual.expect("given"), &vec![0; bytes as usize]);
        put(output, &vec![0; bytes as usize]);
        put(table, &plan.table());
        let (seed, mut residual) = (Seed::new(9).step(u64::from(u32::MAX)), vec![0.0; n]);
        for step in [0u64, 1, 1 << 32] {
            // The step of a replayed graph comes from the table.
            put(table, &step.to_le_bytes());
            // SAFETY: the machine's streams run at once, and the memory lives as long as it.
            let work = || unsafe {
                cuda.queue(EncodeModel { plan: &plan, seed }, WithTable { table, buffers })?;
                let to = DecodeBuffers { bodies: buffers.body, output };
                cuda.queue(
                    DecodeModel { plan: &plan, mode: DecodeMode::Write, payloads: 1 },
                    WithTable { table, buffers: to },
                )
            };
            let (result, queued) = driver.while_armed(work);
            result.expect("a capture allows all of it");
            assert_eq!(queued.len(), launches, "{which}, of twelve tensors");
            let of_step = seed.step(u64::from(u32::MAX) + step);
            let cpu = Device::cpu();
            let expected = cpu.encode_model(&plan, &x, &mut residual, of_step).expect("the CPU encodes");
            let mut body = vec![0; plan.body_bytes() as usize];
            // What lies between the parts was not written.
            let scalars: usize = expected.iter().map(|p| p.header().scalar_bytes() as usize).sum();
            let codes: usize = expected.iter().map(|p| p.header().code_bytes() as usize).sum();
            body[..scalars].copy_from_slice(&get(buffers.body, 0, scalars as u64));
            let at = plan.codes_offset() as usize;
            body[at..at + codes].copy_from_slice(&get(buffers.body, at as u64, codes as u64));
            assert_eq!(plan.seal(&body).expect("of that length"), expected);
            let mut again = vec![0xff; body.len()];
            plan.write_body(&expected, &mut again).expect("of that length");
            assert_eq!(again, body);
            assert_eq!(get(buffers.residual.expect("given"), 0, bytes), bytemuck::cast_slice::<f32, u8>(&residual));
            let mut decoded = vec![0.0; n];
            cpu.decode_model(&plan, DecodeMode::Write, &[&expected], &mut decoded).expect("the CPU decodes");
            assert_eq!(get(output, 0, bytes), bytemuck::cast_slice::<f32, u8>(&decoded));
        }
        assert_eq!(driver.inner().take_faults(), []);
        // SAFETY: nothing is queued.
        let error = unsafe {
            let short = DeviceSlice::new(table.address(), table.bytes() - 1);
            cuda.queue(EncodeModel { plan: &plan, seed }, WithTable { table: short, buffers })
                .expect_err("one byte short")
        };
        assert!(matches!(error, Error::Length { what: "table", .. }), "{error:?}");
        let workspace = buffers.workspace.expect("given");
        for bad in [
            DeviceSlice::new(workspace.address(), workspace.bytes() - 1),
            DeviceSlice::new(workspace.address() + 8, workspace.bytes()),
        ] {
            // SAFETY: nothing is queued.
            let error = unsafe {
                let buffers = EncodeBuffers { workspace: Some(bad), ..buffers };
                cuda.queue(EncodeModel { plan: &plan, seed }, WithTable { table, buffers })
                    .expect_err("it is short, or misaligned")
            };
            let (length, memory) =
                (matches!(error, Error::Length { what: "workspace", .. }), matches!(error, Error::Memory { .. }));
            assert!(length || memory, "{error:?}");
        }
    }
}

#[cfg(feature = "wgpu")]
mod wgpu {
    use gradwire::BackendKind;
    use gradwire::backend::wgpu::Wgpu;
    use gradwire_tests::require;

    use super::*;

    #[test]
    fn on_wgpu_within_its_limits_and_within_small_ones() {
        let wgpu = match require::open(BackendKind::Wgpu).and_then(|_| Wgpu::open()) {
            Ok(wgpu) => wgpu,
            Err(error) => {
                eprintln!("not tested: {error}");
                return;
            }
        };
        checks(&Device::from_wgpu(wgpu.clone()));
        a_model_of_whole_tensors(&Device::from_wgpu(wgpu.clone()));
        // Two spans a binding, three groups of workgroups a launch.
        checks(&Device::from_wgpu(wgpu.clone().with_limits(Limits {
            binding_bytes: 1 << 17,
            groups: 65535,
            ..Limits::NONE
        })));
        checks(&Device::from_wgpu(wgpu.clone().with_limits(Limits {
            binding_bytes: 1 << 27,
            groups: 12,
            ..Limits::NONE
        })));
        let layout = models::awkward();
        let plan = ModelPlan::new(&Qsgd::bits(4), &layout, Dtype::F32, &Limits::NONE).expect("valid");
        let small =
            Device::from_wgpu(wgpu.with_limits(Limits { binding_bytes: 1 << 16, groups: 65535, ..Limits::NONE }));
        let x = cases::normal(layout.elements() as usize, 1);
        let error = small.encode_model(&plan, &x, &mut [], Seed::new(1)).expect_err("made for a larger device");
        assert!(matches!(error, Error::Limit { .. }), "{error:?}");
    }
}
