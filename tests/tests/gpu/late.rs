//! Top-k in a caller's memory whose residual is late: on the PTX machine, with a driver that refuses to allocate and to
//! wait, and on wgpu.

use gradwire::plan::Limits;
use gradwire::{Device, Dtype, NonFinite, TopK};
use gradwire_tests::late::{ELEMENTS, against_the_host, codecs, steps_from, sure_by_their_tile};
use gradwire_tests::{selections, sparse};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Settings that refuse what is not finite; the second one keeps nothing of a segment, and the third zeros at once.
fn guarded() -> [(TopK, Dtype); 3] {
    let [large, several, small] = [TopK::fraction(0.02), codecs().swap_remove(2), TopK::blocks(700, 9)]
        .map(|codec| codec.non_finite(NonFinite::Error));
    [(large, Dtype::Bf16), (several, Dtype::F32), (small, Dtype::F16)]
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::ops::Range;
    use std::sync::Arc;

    use gradwire::backend::cuda::driver::{DevicePtr, Driver, StreamId};
    use gradwire::backend::cuda::{Cuda, DeviceSlice};
    use gradwire::embed::{Scan, ScanBuffers, Select, SelectBuffers, Settle, SettleBuffers};
    use gradwire::{CodecFamily, Error, Selection};
    use gradwire_ptx_machine::Machine;
    use gradwire_tests::capture::Capture;
    use gradwire_tests::late::{Call, Memory, Name, sizes};

    use super::*;

    struct OnMachine {
        driver: Arc<Capture<Machine>>,
        cuda: Cuda,
        pieces: [DeviceSlice; 5],
    }

    fn machine(capability: (u32, u32)) -> (Arc<Capture<Machine>>, Cuda) {
        let driver = Arc::new(Capture::new(Machine::new(capability, 13)));
        let cuda = Cuda::with_driver(driver.clone(), None).expect("the machine takes the artifact");
        cuda.warm_up(&[CodecFamily::TopK]).expect("the machine takes it");
        (driver, cuda)
    }

    impl OnMachine {
        fn new(driver: &Arc<Capture<Machine>>, cuda: &Cuda, selection: &Selection) -> Self {
            // Some are planned by other limits than the device's.
            cuda.warm_up_passes(selection.passes()).expect("the machine takes them");
            // Memory that nothing has written, and no byte more than is asked for.
            let room = |bytes: u64| DeviceSlice::new(driver.alloc(bytes.max(1)).expect("there is memory").0, bytes);
            Self { driver: driver.clone(), cuda: cuda.clone(), pieces: sizes(selection).map(room) }
        }

        fn buffers(&self) -> SelectBuffers<DeviceSlice> {
            let [gradient, residual, indices, values, workspace] = self.pieces;
            SelectBuffers { gradient, residual: Some(residual), indices, values, workspace }
        }
    }

    impl Memory for OnMachine {
        fn write(&mut self, piece: Name, bytes: &[u8]) {
            let to = DevicePtr(self.pieces[piece as usize].address());
            // SAFETY: the machine checks ranges itself, and copies at once.
            unsafe { self.driver.copy_in(to, bytes, StreamId::OWN) }.expect("it fits");
        }

        fn read(&mut self, piece: Name, bytes: Range<u64>) -> Vec<u8> {
            let mut out = vec![0; (bytes.end - bytes.start) as usize];
            let from = DevicePtr(self.pieces[piece as usize].address() + bytes.start);
            // SAFETY: as above.
            unsafe { self.driver.copy_out(&mut out, from, StreamId::OWN) }.expect("it is there");
            out
        }

        fn call(&mut self, call: Call, selection: &Selection) -> Result<(), Error> {
            let (cuda, good) = (&self.cuda, self.buffers());
            let short = DeviceSlice::new(good.values.address(), good.values.bytes().saturating_sub(4));
            // SAFETY: the machine's streams run at once, and the memory lives as long as it.
            let work = || unsafe {
                match call {
                    Call::Select => cuda.queue(Select(selection), good),
                    Call::SelectRefused => cuda.queue(Select(selection), SelectBuffers { values: short, ..good }),
                    Call::Scan => {
                        let SelectBuffers { gradient, residual, workspace, .. } = good;
                        cuda.queue(Scan(selection), ScanBuffers { gradient, residual, workspace })
                    }
                    // Of the workspace the table is enough.
                    Call::Settle => {
                        let table = DeviceSlice::new(good.workspace.address(), selection.table_bytes());
                        let residual = good.residual.expect("given");
                        cuda.queue(Settle(selection), SettleBuffers { residual, workspace: table })
                    }
                }
            };
            let (result, queued) = self.driver.while_armed(work);
            assert!(result.is_ok() || queued.is_empty(), "it was refused after {queued:?}");
            result
        }
    }

    #[test]
    fn a_stream_leaves_what_a_residual_on_the_host_does() {
        let mut late = [0; 3];
        for (index, codec) in codecs().into_iter().enumerate() {
            for (at, dtype) in DTYPES.into_iter().enumerate() {
                // Each target's text takes its turn.
                let (driver, cuda) = machine([(3, 5), (7, 0), (8, 0), (9, 0)][(index + at) % 4]);
                let host = Device::from_cuda(cuda.clone());
                let steps = steps_from(sparse::FILLS[14], ELEMENTS);
                let memory = |selection: &Selection| OnMachine::new(&driver, &cuda, selection);
                let codec = (&codec, dtype, false);
                late[at] += against_the_host(&host, codec, &cuda.limits(), ("some NaN", &steps), memory);
                assert_eq!(driver.inner().take_faults(), []);
            }
        }
        // Two of four steps are finite.
        assert!(late.iter().all(|entries| *entries > 70_000), "{late:?}");
    }

    #[test]
    fn on_every_distribution_in_one_launch_and_in_several() {
        let (driver, cuda) = machine((8, 0));
        let few = Limits { groups: 3, ..Limits::NONE };
        let n = 20_011;
        let settings =
            [(TopK::fraction(0.01), cuda.limits()), (TopK::fraction(0.3), few), (TopK::blocks(9001, 70), few)];
        for fill in sparse::FILLS.into_iter().chain(selections::MISLEADING) {
            let steps = &steps_from(fill, n)[..3];
            for (codec, limits) in &settings {
                let memory = |selection: &Selection| OnMachine::new(&driver, &cuda, selection);
                against_the_host(&Device::cpu(), (codec, Dtype::F32, false), limits, (fill.0, steps), memory);
                assert_eq!(driver.inner().take_faults(), [], "{}", fill.0);
            }
        }
    }

    #[test]
    fn what_is_refused_leaves_the_residual() {
        for (codec, dtype) in guarded() {
            let (driver, cuda) = machine((8, 0));
            let (host, steps) = (Device::from_cuda(cuda.clone()), steps_from(sparse::FILLS[0], ELEMENTS));
            let memory = |selection: &Selection| OnMachine::new(&driver, &cuda, selection);
            against_the_host(&host, (&codec, dtype, true), &cuda.limits(), ("guarded", &steps), memory);
            assert_eq!(driver.inner().take_faults(), []);
        }
    }

    #[test]
    fn where_a_tile_tells_what_is_sure() {
        let (driver, cuda) = machine((7, 0));
        let (codec, x) = sure_by_their_tile();
        let memory = |selection: &Selection| OnMachine::new(&driver, &cuda, selection);
        let steps = [x.clone(), x];
        against_the_host(&Device::cpu(), (&codec, Dtype::F32, false), &cuda.limits(), ("sure by tile", &steps), memory);
        assert_eq!(driver.inner().take_faults(), []);
    }

    /// What it saves, and what it costs: no launch more, and no zeros.
    #[test]
    fn a_late_selection_has_as_many_launches() {
        let launches = |codec: &TopK| {
            let of = |selection: Result<Selection, Error>| selection.expect("valid").passes().len();
            let n = 1 << 20;
            let late = of(codec.lazy_selection(n, Dtype::F32, &Limits::NONE));
            (of(codec.selection(n, Dtype::F32, true, &Limits::NONE)), late)
        };
        for codec in [TopK::fraction(0.01), TopK::blocks(9000, 7), TopK::blocks(100, 1)] {
            let (at_once, late) = launches(&codec);
            assert_eq!(at_once, late, "{codec:?}");
        }
        let never = TopK::blocks(100, 1).lazy_selection(1000, Dtype::F32, &Limits::NONE).expect("valid");
        assert!(!never.is_lazy() && never.settle_passes().is_empty() && never.table_bytes() == 0);
        let narrow = Limits { binding_bytes: 1 << 15, ..Limits::NONE };
        let refused = TopK::count(3).lazy_selection(20_000, Dtype::F32, &narrow);
        assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");
    }
}

#[cfg(feature = "wgpu")]
mod on_wgpu {
    use std::ops::Range;

    use gradwire::embed::{Scan, ScanBuffers, Select, SelectBuffers, Settle, SettleBuffers};
    use gradwire::wgpu;
    use gradwire::{Error, Selection};
    use gradwire_tests::caller::{Caller, EVERY};
    use gradwire_tests::late::{Call, Memory, Name, sizes};

    use super::*;

    struct OnDevice {
        caller: Caller,
        buffers: [wgpu::Buffer; 5],
    }

    impl OnDevice {
        fn new(caller: &Caller, selection: &Selection) -> Self {
            let buffers = sizes(selection).map(|bytes| caller.room(bytes, EVERY));
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

        fn call(&mut self, call: Call, selection: &Selection) -> Result<(), Error> {
            let [gradient, residual, indices, values, workspace] = self.buffers.each_ref().map(|b| b.slice(..));
            let good = SelectBuffers { gradient, residual: Some(residual), indices, values, workspace };
            let mut encoder = self.caller.encoder();
            match call {
                Call::Select => self.caller.gradwire.record(Select(selection), &mut encoder, good),
                Call::SelectRefused => {
                    let values = &self.buffers[Name::Values as usize];
                    let values = values.slice(..values.size() - 4);
                    self.caller.gradwire.record(Select(selection), &mut encoder, SelectBuffers { values, ..good })
                }
                Call::Scan => {
                    let buffers = ScanBuffers { gradient, residual: Some(residual), workspace };
                    self.caller.gradwire.record(Scan(selection), &mut encoder, buffers)
                }
                Call::Settle => {
                    let buffers = SettleBuffers { residual, workspace };
                    self.caller.gradwire.record(Settle(selection), &mut encoder, buffers)
                }
            }?;
            self.caller.queue.submit([encoder.finish()]);
            Ok(())
        }
    }

    #[test]
    fn recorded_commands_leave_what_a_residual_on_the_host_does() {
        let Some(caller) = Caller::open() else { return };
        let memory = |selection: &Selection| OnDevice::new(&caller, selection);
        let (on, limits) = (Device::from_wgpu(caller.gradwire.clone()), caller.gradwire.limits());
        let mut late = [0; 3];
        for codec in codecs() {
            for (at, dtype) in DTYPES.into_iter().enumerate() {
                let steps = steps_from(sparse::FILLS[14], ELEMENTS);
                late[at] += against_the_host(&on, (&codec, dtype, false), &limits, ("some NaN", &steps), memory);
            }
        }
        // Two of four steps are finite.
        assert!(late.iter().all(|entries| *entries > 70_000), "{late:?}");
        let few = Limits { groups: 3, ..limits };
        for fill in sparse::FILLS.into_iter().chain(selections::MISLEADING) {
            let steps = &steps_from(fill, 20_011)[..3];
            for (codec, limits) in
                [(TopK::fraction(0.01), limits), (TopK::fraction(0.3), few), (TopK::blocks(9001, 70), few)]
            {
                against_the_host(&Device::cpu(), (&codec, Dtype::F32, false), &limits, (fill.0, steps), memory);
            }
        }
        for (codec, dtype) in guarded() {
            let steps = steps_from(sparse::FILLS[0], ELEMENTS);
            against_the_host(&on, (&codec, dtype, true), &limits, ("guarded", &steps), memory);
        }
        let (codec, x) = sure_by_their_tile();
        let steps = [x.clone(), x];
        against_the_host(&Device::cpu(), (&codec, Dtype::F32, false), &limits, ("sure by tile", &steps), memory);
    }
}
