//! PowerSGD in a caller's memory: on the PTX machine, with a driver that refuses to allocate and to wait, and on wgpu.

use gradwire::{Dtype, Error, Matrix, PowerSgd, Seed, StateError};
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use gradwire_tests::resident::{against_the_host, codecs, from_one_sided};

#[test]
fn numbers_that_no_step_leaves_behind_are_not_downloaded() {
    let (codec, tensors) = (PowerSgd::rank(2), [Matrix::new(16, 8), Matrix::vector(5)]);
    let steps = codec.resident(&tensors, Dtype::F32, Seed::new(1)).expect("valid");
    let mut state = steps.image();
    state.resize(steps.saved_bytes() as usize, 0);
    let mut residual = vec![0.5f32; steps.elements()];
    let saved = steps.download(&state, &residual).and_then(|state| state.to_bytes()).expect("finite");
    codec.restore(&tensors, &saved).expect("what was saved is read");
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        residual[130] = odd;
        let error = steps.download(&state, &residual).expect_err("not finite");
        assert!(matches!(error, Error::State(StateError::NotFinite { index: 130 })), "{error:?}");
    }
    // Without feedback the residual is not read, whatever it holds.
    let plain = codec.without_feedback().resident(&tensors, Dtype::F32, Seed::new(1)).expect("valid");
    let mut image = plain.image();
    image.resize(plain.saved_bytes() as usize, 0);
    plain.download(&image, &residual).expect("it counts as zeros");
    residual[130] = 0.5;
    // Factors lie after the 133 elements. Which words they are is the library's to know, so each is tried.
    let mut refused = Vec::new();
    for at in (0..state.len()).step_by(4) {
        let mut state = state.clone();
        state[at..at + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        match steps.download(&state, &residual) {
            Err(Error::State(StateError::NotFinite { index })) => refused.push(index),
            Err(other) => panic!("{other:?}"),
            Ok(state) => drop(codec.restore(&tensors, &state.to_bytes().expect("idle")).expect("another word")),
        }
    }
    assert_eq!(refused, (133..133 + 2 * (16 + 8)).collect::<Vec<u64>>());
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::ops::Range;
    use std::sync::Arc;

    use gradwire::backend::cuda::driver::{DevicePtr, Driver, StreamId};
    use gradwire::backend::cuda::{Cuda, DeviceSlice};
    use gradwire::embed::{AdvanceLowRank, BeginLowRank, FinishLowRank, LowRankBuffers};
    use gradwire::{Device, Error, Matrix, PowerSgd, ResidentLowRank, Seed};
    use gradwire_ptx_machine::Machine;
    use gradwire_tests::capture::Capture;
    use gradwire_tests::resident::{Call, Memory, Name};

    use super::{Dtype, against_the_host, codecs, from_one_sided};

    struct OnMachine {
        driver: Arc<Capture<Machine>>,
        cuda: Cuda,
        buffers: LowRankBuffers<DeviceSlice>,
    }

    fn machine(capability: (u32, u32)) -> (Arc<Capture<Machine>>, Cuda) {
        let driver = Arc::new(Capture::new(Machine::new(capability, 11)));
        let cuda = Cuda::with_driver(driver.clone(), None).expect("the machine takes the artifact");
        cuda.warm_up(&[gradwire::CodecFamily::PowerSgd]).expect("the machine takes it");
        (driver, cuda)
    }

    impl OnMachine {
        fn new(driver: &Arc<Capture<Machine>>, cuda: &Cuda, steps: &ResidentLowRank) -> Self {
            // Memory that nothing has written, and no byte more than is asked for.
            let room = |bytes: u64| DeviceSlice::new(driver.alloc(bytes).expect("there is memory").0, bytes);
            let buffers = LowRankBuffers {
                gradient: Some(room(steps.gradient_bytes())),
                residual: room(steps.residual_bytes()),
                state: room(steps.state_bytes()),
                factors: room(steps.factor_bytes()),
                output: Some(room(steps.output_bytes())),
            };
            Self { driver: driver.clone(), cuda: cuda.clone(), buffers }
        }

        fn piece(&self, piece: Name) -> DeviceSlice {
            let b = &self.buffers;
            match piece {
                Name::Gradient => b.gradient.expect("given"),
                Name::Residual => b.residual,
                Name::State => b.state,
                Name::Factors => b.factors,
                Name::Output => b.output.expect("given"),
            }
        }
    }

    impl Memory for OnMachine {
        fn write(&mut self, piece: Name, bytes: &[u8]) {
            let to = DevicePtr(self.piece(piece).address());
            // SAFETY: the machine checks ranges itself, and copies at once.
            unsafe { self.driver.copy_in(to, bytes, StreamId::OWN) }.expect("it fits");
        }

        fn read(&mut self, piece: Name, bytes: Range<u64>) -> Vec<u8> {
            let mut out = vec![0; (bytes.end - bytes.start) as usize];
            let from = DevicePtr(self.piece(piece).address() + bytes.start);
            // SAFETY: as above.
            unsafe { self.driver.copy_out(&mut out, from, StreamId::OWN) }.expect("it is there");
            out
        }

        fn call(&mut self, call: Call, steps: &mut ResidentLowRank) -> Result<(), Error> {
            let (cuda, buffers) = (&self.cuda, self.buffers);
            // Each call has what it uses.
            let LowRankBuffers { gradient, output, .. } = buffers;
            let buffers = LowRankBuffers { gradient: None, output: None, ..buffers };
            // SAFETY: the machine's streams run at once, and the memory lives as long as it.
            let work = || unsafe {
                match call {
                    Call::Begin => cuda.queue(BeginLowRank(steps), LowRankBuffers { gradient, ..buffers }),
                    // What is queued is done; a step that has not begun is one that is given up.
                    Call::BeginUnsubmitted => Ok(()),
                    Call::Advance => cuda.queue(AdvanceLowRank(steps), buffers),
                    Call::Finish => cuda.queue(FinishLowRank(steps), LowRankBuffers { output, ..buffers }),
                }
            };
            self.driver.while_armed(work).0
        }
    }

    #[test]
    fn a_stream_leaves_what_a_state_on_the_host_does() {
        for (index, codec) in codecs().into_iter().enumerate() {
            let dtype = [Dtype::F32, Dtype::Bf16, Dtype::F16][index % 3];
            // Each target's text takes its turn.
            let (driver, cuda) = machine([(3, 5), (8, 0), (9, 0)][(index + 1) % 3]);
            let device = Device::from_cuda(cuda.clone());
            against_the_host(&device, codec, dtype, |steps| OnMachine::new(&driver, &cuda, steps));
            assert_eq!(driver.inner().take_faults(), []);
        }
        let (driver, cuda) = machine((8, 0));
        from_one_sided(&Device::from_cuda(cuda.clone()), |steps| OnMachine::new(&driver, &cuda, steps));
        assert_eq!(driver.inner().take_faults(), []);
    }

    #[test]
    fn bad_memory_is_refused_before_anything_is_queued() {
        let (driver, cuda) = machine((8, 0));
        let tensors = [Matrix::new(40, 60), Matrix::vector(9)];
        let mut steps = PowerSgd::rank(2).resident(&tensors, Dtype::F32, Seed::new(1)).expect("valid");
        let memory = OnMachine::new(&driver, &cuda, &steps);
        let good = memory.buffers;
        let gradient = good.gradient.expect("given");
        let short = |slice: DeviceSlice| DeviceSlice::new(slice.address(), slice.bytes() - 1);
        let aside = |slice: DeviceSlice, by| DeviceSlice::new(slice.address() + by, slice.bytes());
        let bad = [
            LowRankBuffers { gradient: Some(short(gradient)), ..good },
            LowRankBuffers { residual: short(good.residual), ..good },
            LowRankBuffers { state: short(good.state), ..good },
            LowRankBuffers { factors: short(good.factors), ..good },
            LowRankBuffers { gradient: Some(aside(gradient, 2)), ..good },
            LowRankBuffers { state: aside(good.state, 4), ..good },
            LowRankBuffers { factors: good.state, ..good },
            LowRankBuffers { residual: gradient, ..good },
            LowRankBuffers { gradient: None, ..good },
            LowRankBuffers { state: DeviceSlice::new(0, good.state.bytes()), ..good },
        ];
        for buffers in bad {
            // SAFETY: all of it is refused.
            let work = || unsafe { cuda.queue(BeginLowRank(&mut steps), buffers) };
            let (result, queued) = driver.while_armed(work);
            let error = result.expect_err("bad memory");
            assert!(matches!(error, Error::Length { .. } | Error::Memory { .. }), "{error:?}");
            assert!(queued.is_empty(), "{queued:?}");
            assert_eq!(steps.factor_len(), 80, "the step has not begun");
        }
    }
}

#[cfg(feature = "wgpu")]
mod on_wgpu {
    use std::ops::Range;

    use gradwire::embed::{AdvanceLowRank, BeginLowRank, FinishLowRank, LowRankBuffers};
    use gradwire::wgpu;
    use gradwire::{Device, Error, ResidentLowRank};
    use gradwire_tests::caller::{Caller, EVERY};
    use gradwire_tests::resident::{Call, Memory, Name};

    use super::{Dtype, against_the_host, codecs, from_one_sided};

    struct OnDevice {
        caller: Caller,
        buffers: [wgpu::Buffer; 5],
    }

    impl OnDevice {
        fn new(caller: &Caller, steps: &ResidentLowRank) -> Self {
            let sizes = [
                steps.gradient_bytes(),
                steps.residual_bytes(),
                steps.state_bytes(),
                steps.factor_bytes(),
                steps.output_bytes(),
            ];
            let buffers = sizes.map(|bytes| caller.room(bytes, EVERY));
            Self { caller: caller.clone(), buffers }
        }
    }

    impl Memory for OnDevice {
        fn write(&mut self, piece: Name, bytes: &[u8]) {
            self.caller.write(&self.buffers[piece as usize], bytes);
        }

        fn read(&mut self, piece: Name, bytes: Range<u64>) -> Vec<u8> {
            self.caller.read(&self.buffers[piece as usize], bytes)
        }

        fn call(&mut self, call: Call, steps: &mut ResidentLowRank) -> Result<(), Error> {
            let [gradient, residual, state, factors, output] = self.buffers.each_ref().map(|buffer| buffer.slice(..));
            let buffers = LowRankBuffers { gradient: None, residual, state, factors, output: None };
            let mut encoder = self.caller.encoder();
            match call {
                Call::Begin | Call::BeginUnsubmitted => self.caller.gradwire.record(
                    BeginLowRank(steps),
                    &mut encoder,
                    LowRankBuffers { gradient: Some(gradient), ..buffers },
                ),
                Call::Advance => self.caller.gradwire.record(AdvanceLowRank(steps), &mut encoder, buffers),
                Call::Finish => self.caller.gradwire.record(
                    FinishLowRank(steps),
                    &mut encoder,
                    LowRankBuffers { output: Some(output), ..buffers },
                ),
            }?;
            if call != Call::BeginUnsubmitted {
                self.caller.queue.submit([encoder.finish()]);
            }
            Ok(())
        }
    }

    #[test]
    fn recorded_commands_leave_what_a_state_on_the_host_does() {
        let Some(caller) = Caller::open() else { return };
        let on = Device::from_wgpu(caller.gradwire.clone());
        for (index, codec) in codecs().into_iter().enumerate() {
            let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][index % 3];
            against_the_host(&on, codec, dtype, |steps| OnDevice::new(&caller, steps));
        }
        from_one_sided(&on, |steps| OnDevice::new(&caller, steps));
    }
}
