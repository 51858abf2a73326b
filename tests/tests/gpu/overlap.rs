//! Launches that may begin while the one before them drains: which they are, by what the stand-in for the driver is
//! asked, and that their kernels wait, by the PTX machine.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use gradwire::backend::cuda::artifacts::{FAMILIES, family_of, waits};
use gradwire::backend::cuda::driver::{DevicePtr, Driver, StreamId};
use gradwire::backend::cuda::{Cuda, DeviceSlice, RealDriver};
use gradwire::embed::{BeginLowRank, FinishLowRank, LowRankBuffers, Select, SelectBuffers};
use gradwire::{BackendKind, Device, Dtype, Error, Gradient, Matrix, PowerSgd, Seed, TopK};
use gradwire_ptx_machine::{Machine, Violation};
use gradwire_tests::cases;
use gradwire_tests::low_rank::{bits, step};
use libloading::Library;

/// The families whose calls are launches in a row.
const CHAINED: [&str; 2] = ["topk", "powersgd"];
/// What their kernels begin with for sm_90.
const CHAIN: [&str; 2] = ["griddepcontrol.launch_dependents;", "griddepcontrol.wait;"];
/// The kernel that leaves most multiprocessors free, and lets no blocks wait there.
const UNTRIGGERED: &str = "powersgd_factor";
/// Elements of a selection: some tiles, and some blocks.
const N: usize = 70_001;
/// Tensors of which a step has several kinds of launches.
const TENSORS: [Matrix; 3] = [Matrix::new(300, 70), Matrix::vector(500), Matrix::new(48, 130)];

fn is_chained(kernel: &str) -> bool {
    family_of(kernel).is_some_and(|family| CHAINED.contains(&family.name))
}

#[test]
fn the_texts_for_sm_90_wait_before_all_else_and_no_others_do() {
    for family in &FAMILIES {
        for artifact in &family.artifacts {
            let (text, name) = (artifact.instructions(), format!("{} for sm_{}", family.name, artifact.target));
            let expected = artifact.target >= 90 && CHAINED.contains(&family.name);
            assert_eq!(waits(artifact), expected, "{name}");
            let kernels: Vec<&str> = text.split("\n.visible .entry ").skip(1).collect();
            assert!(!kernels.is_empty(), "{name}");
            for kernel in kernels {
                let body = kernel.split_once("\n{\n").expect("a body").1;
                let chain = if kernel.starts_with(UNTRIGGERED) { &CHAIN[1..] } else { &CHAIN };
                let first: Vec<&str> =
                    body.lines().skip_while(|line| line.starts_with('.')).take(chain.len()).collect();
                assert_eq!(first == chain, expected, "{name}: {first:?}");
                let count = CHAIN.map(|line| kernel.matches(line).count());
                let chained = CHAIN.map(|line| usize::from(expected && chain.contains(&line)));
                assert_eq!(count, chained, "{name}");
            }
        }
    }
}

/// A selection, one with feedback, one of segments, and two steps of PowerSGD: what they give, as bytes.
fn all_calls(device: &Device) -> Result<Vec<Vec<u8>>, Error> {
    let x = cases::normal(N, 3);
    let mut residual = cases::normal(N, 4);
    let parts = [40_000, 30_001].map(|elements| gradwire::Segment { elements, k: elements / 50 });
    let mut all = vec![
        device.encode_sparse(&TopK::fraction(0.01), &x, Seed::new(1))?.as_bytes().to_vec(),
        device.encode_sparse_with_feedback(&TopK::fraction(0.1), &x, &mut residual, Seed::new(1))?.as_bytes().to_vec(),
        device.encode_sparse(&TopK::segments(&parts), &x, Seed::new(1))?.as_bytes().to_vec(),
    ];
    all.push(bytemuck::cast_slice(&residual).to_vec());
    Ok(all)
}

fn low_rank(device: &Device) -> Vec<Vec<u32>> {
    let n = TENSORS.iter().map(Matrix::elements).sum::<u64>() as usize;
    let mut state = PowerSgd::rank(4).min_compression(0.5).state(&TENSORS, Seed::new(4)).expect("valid");
    (0..2).map(|t| bits(&step(device, &mut state, &cases::normal(n, 80 + t)))).collect()
}

#[test]
fn kernels_that_begin_early_wait_on_the_machine() {
    let expected = all_calls(&Device::cpu()).expect("the CPU selects");
    let mut outputs = Vec::new();
    for allowed in [true, false] {
        let machine = Arc::new(Machine::new((9, 0), 5).counting());
        let cuda = Cuda::with_driver(machine.clone(), None).expect("it loads");
        cuda.overlap_launches(allowed);
        let device = Device::from_cuda(cuda);
        assert_eq!(all_calls(&device).expect("it selects"), expected);
        outputs.push(low_rank(&device));
        let launched = machine.take_launched();
        let early: Vec<&str> = launched.iter().filter(|l| l.dependent).map(|l| l.kernel.as_str()).collect();
        assert!(early.iter().all(|kernel| is_chained(kernel)), "{early:?}");
        let of = |prefix: &str| early.iter().filter(|kernel| kernel.starts_with(prefix)).count();
        assert_eq!([of("topk_") >= 9, of("powersgd_") >= 8], [allowed; 2], "{early:?}");
        assert_eq!(machine.take_faults(), []);
    }
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn a_kernel_that_begins_early_and_does_not_wait_is_found() {
    let machine = Arc::new(Machine::new((9, 0), 5).planting("griddepcontrol.wait;", ""));
    let device = Device::from_cuda(Cuda::with_driver(machine.clone(), None).expect("it still loads"));
    let error = all_calls(&device).expect_err("the second launch touches memory at once");
    assert!(machine.is_planted() && matches!(error, Error::Backend { .. }), "{error}");
    let faults = machine.take_faults();
    let of_order = |what: &Violation| matches!(what, Violation::BeforeWait { what: "it touches memory" });
    assert!(!faults.is_empty() && faults.iter().all(|fault| of_order(&fault.what)), "{faults:?}");
}

/// The stand-in for the driver, which Cargo built beside this program.
fn stand_in() -> PathBuf {
    let name = format!("{}gradwire_cuda_stand_in{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let path = std::env::current_exe().expect("this program").with_file_name(name);
    assert!(path.exists(), "{} was not built", path.display());
    path
}

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    // SAFETY: it is the stand-in.
    LIBRARY.get_or_init(|| unsafe { Library::new(stand_in()).expect("the stand-in for CUDA") })
}

/// Held by a test that asks the stand-in what was queued, since it knows not by whom.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was queued since the last call of this.
fn queued(library: &Library) -> Vec<String> {
    extern "C" fn take(of: *mut c_void, line: *const u8, bytes: usize) {
        // SAFETY: it is the list below, and a line of so many bytes.
        let (list, line) = unsafe { (&mut *of.cast::<Vec<String>>(), std::slice::from_raw_parts(line, bytes)) };
        list.push(String::from_utf8_lossy(line).into_owned());
    }
    type Queued = unsafe extern "C" fn(extern "C" fn(*mut c_void, *const u8, usize), *mut c_void);
    let mut list: Vec<String> = Vec::new();
    // SAFETY: the type is that of the stand-in's function, which calls `take` before it returns.
    unsafe {
        (library.get::<Queued>("gradwire_stand_in_queued").expect("its function"))(take, (&raw mut list).cast());
    }
    list
}

/// Opens the stand-in at a path.
fn open(path: &Path, target: Option<u32>) -> (Arc<RealDriver>, Cuda) {
    // SAFETY: it is the stand-in.
    let driver = Arc::new(unsafe { RealDriver::open_library(path, 0) }.expect("the stand-in"));
    let cuda = Cuda::with_driver(driver.clone(), target).expect("it loads");
    (driver, cuda)
}

/// Checks that of what was queued, in one call or in several with waits between, a launch may begin early where its
/// kernel and the one directly before it wait, and nowhere else; in a driver that cannot do so, or is not to,
/// nowhere. Gives how many do.
fn check(lines: &[String], expected: bool) -> usize {
    let (mut before, mut count) = (false, 0);
    for (index, line) in lines.iter().enumerate() {
        let (name, early) = line.strip_prefix('+').map_or((line.as_str(), false), |name| (name, true));
        let chained = is_chained(name);
        assert_eq!(early, expected && chained && before, "{index} of {lines:?}");
        before = chained;
        count += usize::from(early);
    }
    count
}

#[test]
fn a_call_s_launches_but_the_first_begin_early() {
    let _alone = alone();
    let (_, cuda) = open(&stand_in(), None);
    let device = Device::from_cuda(cuda);
    let x = cases::normal(N, 3);
    let select = |device: &Device| device.encode_sparse(&TopK::fraction(0.01), &x, Seed::new(1)).expect("it selects");
    queued(library());
    let found = select(&device);
    let lines = queued(library());
    assert_eq!(found.as_bytes(), select(&Device::cpu()).as_bytes());
    let launches: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !line.starts_with("cu")).collect();
    assert_eq!(launches, ["topk_sample", "+topk_filter", "+topk_rest", "+topk_emit"], "{lines:?}");
    assert_eq!(check(&lines, true), 3);

    // What the kernels of other families launch begins when all before it is done.
    device.encode(&gradwire::Qsgd::bits(4), &x, Seed::new(1)).expect("it encodes");
    device.decode_sparse(&found).expect("it decodes");
    let lines = queued(library());
    assert!(lines.iter().any(|line| line == "sparse_scatter"), "{lines:?}");
    assert_eq!(check(&lines, true), 0);

    assert_eq!(all_calls(&device).expect("it selects"), all_calls(&Device::cpu()).expect("it selects"));
    assert!(check(&queued(library()), true) >= 9);
    low_rank(&device);
    let lines = queued(library());
    assert!(check(&lines, true) >= 8, "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("cuMem")), "{lines:?}");
}

#[test]
fn calls_that_are_queued_begin_behind_what_is_before_them() {
    let _alone = alone();
    let (driver, cuda) = open(&stand_in(), None);
    let room = |bytes: u64| DeviceSlice::new(driver.alloc(bytes).expect("there is memory").0, bytes);
    // SAFETY: the stand-in checks ranges, and copies at once.
    let write = |at: DeviceSlice, bytes: &[u8]| unsafe {
        driver.copy_in(DevicePtr(at.address()), bytes, StreamId::OWN).expect("it fits");
    };
    let (x, codec) = (cases::normal(N, 3), TopK::fraction(0.01));
    let selection = codec.selection(N, Dtype::F32, false, &cuda.limits()).expect("valid");
    let entries = selection.entries();
    let buffers = SelectBuffers {
        gradient: room(4 * N as u64),
        residual: None,
        indices: room(4 * entries),
        values: room(4 * entries),
        workspace: room(selection.workspace_bytes()),
    };
    write(buffers.gradient, bytemuck::cast_slice(&x));
    write(buffers.workspace, &selection.table());
    let select = || {
        queued(library());
        // SAFETY: the memory lives as long as the driver, and the stand-in's work is done when a call returns.
        let result = unsafe { cuda.queue(Select(&selection), buffers) };
        (result, queued(library()))
    };
    // The second call is directly after the first, and begins after it all the same.
    for _ in 0..2 {
        let (result, lines) = select();
        result.expect("it is queued");
        assert_eq!(lines, ["topk_sample", "+topk_filter", "+topk_rest", "+topk_emit"]);
    }
    let mut words = vec![0u32; entries as usize];
    // SAFETY: as above.
    let read = unsafe {
        driver.copy_out(bytemuck::cast_slice_mut(&mut words), DevicePtr(buffers.indices.address()), StreamId::OWN)
    };
    read.expect("they were written");
    let expected = Device::cpu().encode_sparse(&codec, Gradient::F32(&x), Seed::new(1)).expect("the CPU selects");
    assert_eq!(words, expected.indices());

    // A graph records launches that wait for all before them.
    let capture = |on: bool| {
        // SAFETY: the type is that of the stand-in's function.
        unsafe {
            (library().get::<unsafe extern "C" fn(bool)>("gradwire_stand_in_capture").expect("its function"))(on);
        }
    };
    capture(true);
    let (result, lines) = select();
    capture(false);
    result.expect("it is queued");
    assert_eq!((lines.len(), check(&lines, false)), (4, 0));
    // So do all launches, where the caller wants that.
    for (allowed, overlapping) in [(false, 0), (true, 3)] {
        cuda.overlap_launches(allowed);
        let (result, lines) = select();
        result.expect("it is queued");
        assert_eq!((lines.len(), check(&lines, allowed)), (4, overlapping));
    }

    let mut steps = PowerSgd::rank(4).resident(&TENSORS, Dtype::F32, Seed::new(4)).expect("valid");
    let buffers = LowRankBuffers {
        gradient: Some(room(steps.gradient_bytes())),
        residual: room(steps.residual_bytes()),
        state: room(steps.state_bytes()),
        factors: room(steps.factor_bytes()),
        output: Some(room(steps.output_bytes())),
    };
    write(buffers.gradient.expect("given"), bytemuck::cast_slice(&cases::normal(steps.elements(), 80)));
    write(buffers.residual, &vec![0; steps.residual_bytes() as usize]);
    write(buffers.state, &steps.image());
    let rounds = steps.rounds();
    queued(library());
    // SAFETY: as above.
    unsafe { cuda.queue(BeginLowRank(&mut steps), LowRankBuffers { output: None, ..buffers }) }.expect("it is queued");
    let begin = queued(library());
    for _ in 1..rounds {
        let work = gradwire::embed::AdvanceLowRank(&mut steps);
        // SAFETY: as above.
        unsafe { cuda.queue(work, LowRankBuffers { gradient: None, output: None, ..buffers }) }.expect("it is queued");
        let lines = queued(library());
        assert!(check(&lines, true) > 0, "{lines:?}");
    }
    // SAFETY: as above.
    unsafe { cuda.queue(FinishLowRank(&mut steps), LowRankBuffers { gradient: None, ..buffers }) }
        .expect("it is queued");
    for lines in [begin, queued(library())] {
        assert!(check(&lines, true) > 0, "{lines:?}");
    }
}

#[test]
fn a_text_or_a_driver_that_cannot_launches_as_before() {
    let _alone = alone();
    let expected = all_calls(&Device::cpu()).expect("the CPU selects");
    // The text for sm_80 on a device of 9.0.
    let (_, cuda) = open(&stand_in(), Some(80));
    queued(library());
    assert_eq!(all_calls(&Device::from_cuda(cuda)).expect("it selects"), expected);
    let lines = queued(library());
    assert!(lines.iter().any(|line| line == "topk_filter"), "{lines:?}");
    assert_eq!(check(&lines, false), 0);

    // A driver without the function, as those before CUDA 11.8: the stand-in with another name in its place.
    let name = b"cuLaunchKernelEx\0";
    let mut bytes = std::fs::read(stand_in()).expect("it was built");
    let found: Vec<usize> = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(name)).collect();
    assert!(!found.is_empty(), "the stand-in has the function");
    found.iter().for_each(|at| bytes[at + name.len() - 2] = b'_');
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("older-{}.so", std::process::id()));
    std::fs::write(&path, bytes).expect("there is room");
    // SAFETY: it is the stand-in.
    let older = unsafe { Library::new(&path) }.expect("a library");
    // SAFETY: nothing is called by this type.
    assert!(unsafe { older.get::<unsafe extern "C" fn()>("cuLaunchKernelEx") }.is_err());
    let (_, cuda) = open(&path, None);
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(cuda.target(), 90);
    queued(&older);
    assert_eq!(all_calls(&Device::from_cuda(cuda)).expect("it selects"), expected);
    let lines = queued(&older);
    assert!(lines.iter().any(|line| line == "topk_filter"), "{lines:?}");
    assert_eq!(check(&lines, false), 0);
}

#[test]
fn a_launch_that_fails_is_an_error_whichever_call_it_was() {
    let _alone = alone();
    let (_, cuda) = open(&stand_in(), None);
    let device = Device::from_cuda(cuda);
    let x = cases::normal(N, 3);
    let select = |device: &Device| device.encode_sparse(&TopK::fraction(0.01), &x, Seed::new(1));
    let expected = select(&device).expect("it selects");
    // SAFETY: the types are those of the stand-in's functions.
    let (arm, hit) = unsafe {
        (
            library().get::<unsafe extern "C" fn(u64, u32)>("gradwire_faults_arm").expect("its function"),
            library().get::<unsafe extern "C" fn() -> *const c_char>("gradwire_faults_hit").expect("its function"),
        )
    };
    let (mut failed, mut nth) = ([0; 2], 0);
    loop {
        nth += 1;
        // SAFETY: as above; the name lives as long as the library.
        let (found, name) = unsafe {
            arm(nth, 0);
            let found = select(&device);
            let name = hit();
            arm(0, 0);
            (found, if name.is_null() { None } else { CStr::from_ptr(name).to_str().ok() })
        };
        let Some(name) = name else { break };
        for (count, call) in failed.iter_mut().zip(["cuLaunchKernel", "cuLaunchKernelEx"]) {
            if name == call {
                *count += 1;
                let error = found.as_ref().expect_err("a launch failed");
                let said = error.to_string();
                assert!(matches!(error, Error::Backend { backend: BackendKind::Cuda, .. }), "{error:?}");
                assert!(said.contains(&format!("{call} ")) || said.contains(&format!("{call}:")), "{said}");
            }
        }
        assert_eq!(select(&device).expect("it selects again").as_bytes(), expected.as_bytes(), "behind {name}");
    }
    assert_eq!(failed, [1, 3]);
}
