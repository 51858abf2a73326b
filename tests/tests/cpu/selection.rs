//! Selections as passes over a session: on several tensors of one session, the entries are those of `encode_sparse`.

use gradwire::plan::{Limits, Pass};
#[cfg(feature = "wgpu")]
use gradwire::session::Clock;
use gradwire::session::{Role, Session, Sizes};
use gradwire::{BackendKind, Codec, Device, Dtype, Error, Matrix, PowerSgd, Qsgd, Seed, Selection, TopK};
use gradwire_tests::require::{self, Required};
use gradwire_tests::{cases, selections};

const N: usize = 30_001;
/// Where the second tensor's part of each buffer begins: a multiple of 256 after the first one's.
fn stride(one: Sizes, role: Role) -> u64 {
    one.of(role).next_multiple_of(256)
}

fn words(session: &mut dyn Session, role: Role, at: u64, count: u64) -> Vec<u32> {
    let mut out = vec![0u32; count as usize];
    session.read(role, at, bytemuck::cast_slice_mut(&mut out)).unwrap();
    out
}

/// Two gradients, one after another; both selected from, with feedback, and both decoded.
fn two_tensors(device: &Device) {
    let codec = TopK::fraction(0.02);
    let selection = codec.selection(N, Dtype::F32, true, &device.limits()).unwrap();
    let mut one = selection.sizes();
    one.0[Role::Output as usize] = 4 * N as u64;
    let mut session = device.session(Sizes(Role::ALL.map(|role| 2 * stride(one, role)))).unwrap();
    let gradients = [cases::normal(N, 1), cases::normal(N, 2)];
    let scatter = Selection::scatter(selection.entries(), None, N as u64, &device.limits()).unwrap();
    let mut passes = Vec::new();
    for (set, gradient) in (0u64..).zip(&gradients) {
        session.write(Role::Input, set * stride(one, Role::Input), bytemuck::cast_slice(gradient)).unwrap();
        session.write(Role::Residual, set * stride(one, Role::Residual), &vec![0; 4 * N]).unwrap();
        selection.prepare(session.as_mut(), set * stride(one, Role::Workspace)).unwrap();
        let all = selection.passes().iter().chain(&scatter);
        passes.extend(all.map(|pass| pass.moved(|role| set * stride(one, role))));
    }
    // SAFETY: both selections, each over its table, and their entries.
    unsafe { session.run_trusted(&passes).unwrap() };
    for (set, gradient) in (0u64..).zip(&gradients) {
        let mut residual = vec![0.0; N];
        let sent = device.encode_sparse_with_feedback(&codec, gradient, &mut residual, gradwire::Seed::new(1)).unwrap();
        let decoded: Vec<u32> = device.decode_sparse(&sent).unwrap().iter().map(|v| v.to_bits()).collect();
        let mut read = |role, count| words(session.as_mut(), role, set * stride(one, role), count);
        assert_eq!(read(Role::Indices, selection.entries()), sent.indices(), "set {set}");
        assert_eq!(read(Role::Output, N as u64), decoded, "set {set}");
        assert_eq!(read(Role::Residual, N as u64), bytemuck::cast_slice::<f32, u32>(&residual), "set {set}");
    }
}

#[cfg(feature = "cuda")]
#[test]
fn on_the_ptx_machine() {
    for (name, device) in gradwire_tests::traffic::machines() {
        eprintln!("{name}");
        two_tensors(&device.unwrap());
    }
}

#[test]
fn on_wgpu_and_timed_by_its_clock() {
    let opened = Device::of(BackendKind::Wgpu);
    Required::from_environment().unwrap().check(BackendKind::Wgpu, &opened).unwrap();
    let Ok(device) = opened else { return };
    two_tensors(&device);
    let selection = TopK::fraction(0.01).selection(N, Dtype::F32, false, &device.limits()).unwrap();
    let mut session = device.session(selection.sizes()).unwrap();
    session.write(Role::Input, 0, bytemuck::cast_slice(&cases::normal(N, 3))).unwrap();
    selection.prepare(session.as_mut(), 0).unwrap();
    let start = std::time::Instant::now();
    // SAFETY: all of a selection over its table, which may be repeated.
    let seconds = unsafe { session.time_trusted(selection.passes(), 3).unwrap() };
    let all = start.elapsed().as_secs_f64();
    // The device's clock counts the same seconds: more than none, and no more than went by.
    assert!(seconds > 0.0 && seconds <= all, "{seconds} s by {:?}, and {all} s went by", session.clock());
}

#[cfg(feature = "wgpu")]
#[test]
fn a_callers_device_without_timestamps_is_timed_by_the_host() {
    use gradwire::wgpu;
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let Some(adapter) = adapters.into_iter().next() else { return };
    let descriptor = wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).unwrap();
    let device = Device::from_wgpu(gradwire::backend::wgpu::Wgpu::on(&device, &queue).unwrap());
    let mut sizes = Sizes::default();
    (sizes.0[Role::Input as usize], sizes.0[Role::Output as usize]) = (4096, 4096);
    let mut session = device.session(sizes).unwrap();
    assert_eq!(session.clock(), Clock::Host);
    let (seconds, bytes) = session.time_copy(Role::Input, Role::Output, 2).unwrap();
    assert!(seconds > 0.0 && bytes == 4096);
}

#[test]
fn what_cannot_be_passes_is_a_typed_error() {
    let of = |codec: TopK| codec.selection(1000, Dtype::F32, false, &Limits::NONE);
    assert!(matches!(of(TopK::above(0.5)), Err(Error::Keep { what: "a threshold as passes", .. })));
    assert!(matches!(of(TopK::count(1001)), Err(Error::TooFew { asked: 1001, found: 1000 })));
    let narrow = Limits { binding_bytes: 1024, ..Limits::NONE };
    assert!(matches!(TopK::count(10).selection(1000, Dtype::F32, false, &narrow), Err(Error::Limit { .. })));
    let selection = of(TopK::count(10)).unwrap();
    let device = Device::cpu();
    let mut session = device.session(selection.sizes()).unwrap();
    // SAFETY: the session refuses them before it looks at anything.
    let refused = unsafe { session.run_trusted(selection.passes()) };
    assert!(matches!(refused, Err(Error::Unavailable { backend: BackendKind::Cpu, .. })));
    assert!(matches!(selection.prepare(session.as_mut(), 1 << 40), Err(Error::Length { .. })));
}

/// Safe code reaches no kernel that believes what it finds in memory.
#[test]
fn passes_that_trust_memory_are_refused_by_safe_calls() {
    for device in require::devices() {
        let limits = device.limits();
        let selection = TopK::count(10).selection(20_000, Dtype::F32, false, &limits).unwrap();
        let whole = Qsgd::bits(4).whole_tensor().plan(20_000, Dtype::F32).unwrap();
        let low_rank = PowerSgd::rank(2).resident(&[Matrix::of(&[64, 64])], Dtype::F32, Seed::new(1)).unwrap();
        let cases: [(&str, Sizes, Vec<Pass>); 4] = [
            ("topk", selection.sizes(), selection.passes().to_vec()),
            ("qsgd_encode", whole.sizes(), whole.passes(Seed::new(1), &limits).unwrap()),
            ("powersgd", low_rank.sizes(), low_rank.passes_of_step(&limits).unwrap().concat()),
            ("sparse_scatter", Sizes([1 << 16; 9]), Selection::scatter(9, None, 99, &limits).unwrap()),
        ];
        for (name, sizes, passes) in cases {
            let mut session = device.session(sizes).unwrap();
            for refused in [session.run(&passes), session.time(&passes, 1).map(|_| ())] {
                let Err(Error::Trusting { kernel }) = refused else { panic!("{device}, {name}: {refused:?}") };
                assert!(kernel.starts_with(name), "{kernel}");
            }
        }
        let plan = Qsgd::bits(4).plan(2000, Dtype::F32).unwrap();
        let passes = plan.passes(Seed::new(1), &limits).unwrap();
        let mut session = device.session(Sizes(plan.sizes().0.map(|bytes| 4 * bytes))).unwrap();
        let moved: Vec<_> = passes.iter().map(|pass| pass.moved(|_| 1)).collect();
        assert!(matches!(session.run(&moved), Err(Error::Memory { address: 1, .. })), "{device}");
        session.write(Role::Input, 0, &[0; 8000]).unwrap();
        session.run(&passes).unwrap();
    }
}

#[test]
fn a_pass_that_was_moved_out_of_its_buffers_is_refused() {
    let selection = TopK::count(10).selection(20_000, Dtype::F32, false, &Limits::NONE).unwrap();
    for device in require::devices().into_iter().filter(|device| device.kind() != BackendKind::Cpu) {
        let mut session = device.session(selection.sizes()).unwrap();
        for by in [256, 1 << 50, u64::MAX / 256 * 256] {
            let moved: Vec<_> = selection.passes().iter().map(|pass| pass.moved(|_| by)).collect();
            // SAFETY: the session refuses them before it looks at anything.
            let refused = unsafe { session.run_trusted(&moved) };
            assert!(matches!(refused, Err(Error::Length { .. })), "{device}, by {by}");
        }
    }
}

/// What a report runs on a GPU: here the CPU stands in, to see that it compares, and that the thread that makes the
/// load ends.
#[test]
fn selections_under_load_are_compared() {
    let cpu = Device::cpu();
    assert_eq!(selections::under_load(&cpu, &cpu, 9), Ok(9));
}
