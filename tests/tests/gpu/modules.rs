//! Which kernels a CUDA device loads, when, and from where: on the PTX machine, behind a driver that takes notes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};

use gradwire::backend::cuda::driver::{Driver, DriverError};
use gradwire::backend::cuda::{Cached, Cuda, DeviceSlice};
use gradwire::embed::{Encode, EncodeBuffers};
use gradwire::{Codec, CodecFamily, CodecId, Device, Dtype, Error, NonFinite, Qsgd, Seed, Segment, TopK, Uniform};
use gradwire_ptx_machine::Machine;
use gradwire_tests::capture::Capture;
use gradwire_tests::formula::CODECS;
use gradwire_tests::loads::{Load, Loads};

type Notes = Arc<Loads<Machine>>;

fn machine() -> Loads<Machine> {
    Loads::new(Machine::new((8, 0), 1))
}

fn open(loads: Loads<Machine>) -> (Notes, Cuda) {
    let notes = Arc::new(loads);
    let cuda = Cuda::with_driver(notes.clone(), None).expect("the machine takes the artifact");
    (notes, cuda)
}

fn text(kernel: &str) -> Load {
    Load::Text(kernel.to_owned())
}

fn encodes(cuda: &Cuda) -> Result<(), Error> {
    let x = [0.25f32; 100];
    // A setting that has no kernel of its own.
    let payload = Device::from_cuda(cuda.clone()).encode(&Qsgd::bits(3), &x, Seed::new(1))?;
    assert_eq!(payload, Device::cpu().encode(&Qsgd::bits(3), &x, Seed::new(1)).expect("the CPU encodes"));
    Ok(())
}

fn names(cuda: &Cuda) -> Vec<&'static str> {
    cuda.loaded().iter().map(|family| family.name).collect()
}

#[test]
fn a_call_loads_its_own_family_and_no_other() {
    let (notes, cuda) = open(machine());
    assert_eq!(notes.take(), [text("sparse_scatter")], "opening loads the smallest");
    let device = Device::from_cuda(cuda.clone());
    encodes(&cuda).expect("it encodes");
    assert_eq!(notes.take(), [text("qsgd_combine")]);
    encodes(&cuda).expect("it encodes");
    assert_eq!(notes.take(), [], "and once");
    let checked = Qsgd::bits(4).non_finite(NonFinite::Error);
    device.encode(&checked, &[0.25f32; 100], Seed::new(1)).expect("it encodes");
    assert_eq!(notes.take(), [text("finite_scan")]);
    device.encode(&Uniform::bits(3), &[0.25f32; 100], Seed::new(1)).expect("it encodes");
    assert_eq!(notes.take(), [text("uniform_combine")]);
    device.encode(&Uniform::bits(4), &[0.25f32; 100], Seed::new(1)).expect("it encodes");
    assert_eq!(notes.take(), [text("uniform_fixed_add_4")], "a setting that has a kernel of its own");
    device.encode_sparse(&TopK::count(10), &[0.25f32; 10_000], Seed::new(1)).expect("it selects");
    assert_eq!(notes.take(), [text("topk_block")], "blocks may wait for one another here");
    assert_eq!(names(&cuda), ["qsgd", "uniform", "common", "uniform_fixed", "sparse", "topk"]);
    drop((device, cuda));
    assert_eq!(notes.unloads(), 6);
}

#[test]
fn an_older_device_loads_the_launches_of_top_k() {
    let (notes, cuda) = open(Loads::new(Machine::new((6, 0), 1)));
    cuda.warm_up(&[CodecFamily::TopK]).expect("it takes them");
    assert_eq!(notes.take().len(), 1 + 3, "{:?}", names(&cuda));
    assert_eq!(names(&cuda), ["common", "sparse", "topk", "topk_launches"]);
}

#[test]
fn nothing_is_loaded_after_a_warm_up() {
    for codec in CodecFamily::ALL {
        let (notes, cuda) = open(machine());
        cuda.warm_up(&[codec]).expect("it takes them");
        assert!(!notes.take().is_empty());
        let device = Device::from_cuda(cuda.clone());
        let x: Vec<f32> = (0..10_000).map(|i| (i as f32).sin()).collect();
        match codec {
            CodecFamily::Bucketed(id) => {
                if id == CodecId::Qsgd {
                    let checked = Qsgd::bits(4).whole_tensor().non_finite(NonFinite::Error);
                    device.encode(&checked, &x, Seed::new(1)).expect("it encodes");
                }
                let tests = CODECS.iter().find(|tests| tests.codec == id).expect("every codec is in the list");
                for case in (tests.settings)().into_iter().filter(|case| case.bucket.is_none() || case.bits < 5) {
                    let payload = device.encode(&case.codec(), &x, Seed::new(1)).expect("it encodes");
                    device.decode(&payload).expect("it decodes");
                }
            }
            CodecFamily::TopK => {
                let layers = [Segment { elements: 9000, k: 100 }, Segment { elements: 1000, k: 1 }];
                for keep in [TopK::count(100), TopK::above(0.5), TopK::blocks(1000, 3), TopK::segments(&layers)] {
                    let payload = device.encode_sparse(&keep, &x, Seed::new(1)).expect("it selects");
                    device.decode_sparse(&payload).expect("it decodes");
                }
            }
            _ => {}
        }
        cuda.warm_up(&[codec]).expect("all is there");
        assert_eq!(notes.take(), [], "{codec:?}");
    }
    Device::cpu().warm_up(&CodecFamily::ALL).expect("there is nothing to do");
}

#[test]
fn threads_that_need_a_family_at_once_load_it_once() {
    let (notes, cuda) = open(machine());
    notes.take();
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                encodes(&cuda).expect("it encodes");
            });
        }
    });
    assert_eq!(notes.take(), [text("qsgd_combine")]);
}

fn of_driver(code: i32) -> DriverError {
    DriverError::Call { call: "cuModuleLoadDataEx", code, name: "A_NAME".to_owned(), message: "some words".to_owned() }
}

fn refusal(ptx: &str) -> DriverError {
    let info = Machine::new((8, 0), 1).info().clone();
    DriverError::Jit {
        code: 222,
        name: "A_NAME".to_owned(),
        log: String::new(),
        header: gradwire::backend::cuda::driver::Header::parse(ptx),
        driver_version: info.driver_version,
        compute_capability: info.compute_capability,
    }
}

#[test]
fn a_load_that_fails_is_an_error_and_the_next_call_tries_again() {
    let (notes, cuda) = open(machine());
    notes.take();
    notes.refusing(|_, _| Some(of_driver(2)));
    let error = encodes(&cuda).expect_err("the driver fails");
    assert!(matches!(&error, Error::Backend { reason, .. } if reason.contains("some words")), "{error:?}");
    assert_eq!(notes.take().len(), 1, "another target would fare no better");
    notes.refusing(|_, ptx| Some(refusal(ptx)));
    let error = encodes(&cuda).expect_err("the driver refuses every text");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    for word in ["the PTX of qsgd", "sm_80: the driver refused", "sm_35: the driver refused"] {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    assert_eq!(notes.take().len(), 4, "sm_80, sm_70, sm_60 and sm_35");
    assert_eq!(names(&cuda), ["sparse"]);
    notes.refusing_nothing();
    encodes(&cuda).expect("it encodes");
    assert_eq!(names(&cuda), ["qsgd", "sparse"]);
}

#[test]
fn a_driver_that_refuses_a_target_is_given_a_lower_one_family_by_family() {
    let loads = machine();
    loads.refusing(|_, ptx| ptx.contains(".target sm_80").then(|| refusal(ptx)));
    let (notes, cuda) = open(loads);
    assert_eq!(cuda.target(), 70);
    assert!(cuda.name().contains("sm_70 PTX"), "{}", cuda.name());
    notes.take();
    encodes(&cuda).expect("it encodes");
    assert_eq!(notes.take().len(), 1, "sm_80 is not tried again");

    let (notes, cuda) = open(machine());
    notes.refusing(|load, ptx| (*load == text("qsgd_combine") && ptx.contains(".target sm_80")).then(|| refusal(ptx)));
    encodes(&cuda).expect("sm_70 will do");
    cuda.warm_up(&[CodecId::Uniform.into()]).expect("it takes it");
    assert_eq!(cuda.target(), 80);
    let targets: Vec<_> = cuda.loaded().iter().map(|f| (f.name, f.target, f.refused.len())).collect();
    assert_eq!(
        targets,
        [("qsgd", 70, 1), ("uniform", 80, 0), ("common", 80, 0), ("uniform_fixed", 80, 0), ("sparse", 80, 0)]
    );

    let only = Cuda::with_driver(notes.clone(), Some(80)).expect("the smallest is not refused");
    let error = encodes(&only).expect_err("no other target was asked for");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[test]
fn no_target_that_fits_is_said_at_opening() {
    let error = Cuda::with_driver(Arc::new(Machine::new((3, 0), 1)), None).expect_err("it is too old");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("compute capability 3.0") && error.to_string().contains("none fits"), "{error}");
    let error = Cuda::with_driver(Arc::new(Machine::new((8, 0), 1)), Some(90)).expect_err("it is too old for that");
    assert!(error.to_string().contains("none fits"), "{error}");
}

#[test]
fn a_capture_is_not_disturbed_by_what_is_yet_to_be_compiled() {
    let driver = Arc::new(Capture::new(Machine::new((8, 0), 1)));
    let cuda = Cuda::with_driver(driver.clone(), None).expect("the machine takes the artifact");
    let plan = Qsgd::bits(8).plan(1000, Dtype::F32).expect("a valid setting");
    let room = |bytes: u64| DeviceSlice::new(driver.alloc(bytes).expect("there is memory").0, bytes);
    let gradient = room(4000);
    // SAFETY: the machine checks ranges itself, and copies at once.
    unsafe {
        use gradwire::backend::cuda::driver::{DevicePtr, StreamId};
        driver.copy_in(DevicePtr(gradient.address()), &[0; 4000], StreamId::OWN).expect("it fits");
    }
    let body = room(plan.header().body_bytes());
    let buffers = EncodeBuffers { gradient, residual: None, body, workspace: None };
    // SAFETY: the machine's streams run at once.
    let encode = || unsafe { cuda.queue(Encode { plan: &plan, seed: Seed::new(1) }, buffers) };
    let loaded = driver.modules();
    for work in [&encode as &dyn Fn() -> Result<(), Error>, &|| cuda.warm_up(&[CodecId::Qsgd.into()])] {
        let (result, queued) = driver.while_armed(work);
        let error = result.expect_err("its kernels are not there");
        assert!(matches!(error, Error::Capturing { .. }) && error.to_string().contains("warm_up"), "{error:?}");
        assert!(queued.is_empty());
        assert_eq!(driver.modules(), loaded, "the driver was asked for nothing");
    }
    cuda.warm_up(&[CodecId::Qsgd.into()]).expect("nothing is captured");
    let (result, queued) = driver.while_armed(encode);
    result.expect("its kernels are there");
    assert_eq!(queued.len(), 1);
}

/// A folder of the test's own, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gradwire-modules-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).expect("the folder was made");
        entries.map(|entry| entry.expect("it can be read").path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Encodes with a cache in that folder, as a process of its own would: what the driver was asked for, and what came of
/// it.
fn with_cache(loads: Loads<Machine>, folder: &Path) -> (Vec<Load>, Cached) {
    let (notes, cuda) = open(loads);
    notes.take();
    cuda.cache_in(Some(folder.to_owned()));
    encodes(&cuda).expect("it encodes");
    let qsgd = cuda.loaded().into_iter().find(|family| family.name == "qsgd").expect("it was loaded");
    (notes.take(), qsgd.cached)
}

#[test]
fn a_cache_compiles_once_for_each_driver_and_device() {
    let folder = Folder::new("keys");
    let compiled = [Load::Compile("qsgd_combine".to_owned()), Load::Image];
    assert_eq!(with_cache(machine(), &folder.0), (compiled.to_vec(), Cached::Stored));
    assert_eq!(with_cache(machine(), &folder.0), (vec![Load::Image], Cached::Hit));
    assert_eq!(with_cache(machine().of_release((12, 4)), &folder.0), (compiled.to_vec(), Cached::Stored));
    // The same text on a newer device: sm_80's.
    let newer = || Loads::new(Machine::new((8, 6), 1));
    assert_eq!(with_cache(newer(), &folder.0), (compiled.to_vec(), Cached::Stored));
    assert_eq!(with_cache(newer(), &folder.0), (vec![Load::Image], Cached::Hit));
    assert_eq!(with_cache(Loads::new(Machine::new((9, 0), 1)), &folder.0), (compiled.to_vec(), Cached::Stored));
    assert_eq!(with_cache(machine(), &folder.0), (vec![Load::Image], Cached::Hit), "the others took nothing away");
    assert_eq!(folder.files().len(), 4);
    assert!(folder.files().iter().all(|f| f.extension().is_some_and(|e| e == "cubin")), "{:?}", folder.files());
}

#[test]
fn a_file_that_does_not_count_is_compiled_anew_and_written_over() {
    let folder = Folder::new("damage");
    with_cache(machine(), &folder.0);
    let file = folder.files().remove(0);
    let good = std::fs::read(&file).expect("it is there");
    let compiled = [Load::Compile("qsgd_combine".to_owned()), Load::Image];
    for bad in [&b""[..], b"something else", &good[..good.len() - 1], &[&good[..], b"x"].concat()] {
        std::fs::write(&file, bad).expect("the folder can be written");
        assert_eq!(with_cache(machine(), &folder.0), (compiled.to_vec(), Cached::Stored));
        assert_eq!(std::fs::read(&file).expect("it is there"), good);
    }
    // What the checksums let pass and the driver does not take.
    let loads = machine();
    let mut first = true;
    loads.refusing(move |load, _| {
        let refused = || DriverError::Image { code: 209, name: "A_NAME".to_owned(), bytes: 1 };
        (*load == Load::Image && std::mem::take(&mut first)).then(refused)
    });
    let expected = [&[Load::Image], &compiled[..]].concat();
    assert_eq!(with_cache(loads, &folder.0), (expected, Cached::Stored));
}

#[test]
fn no_cache_fails_a_call() {
    // A folder that cannot be made, since a file is in its way.
    let folder = Folder::new("file");
    std::fs::write(&folder.0, "a file").expect("the folder for temporary files can be written");
    let (loads, cached) = with_cache(machine(), &folder.0.join("below"));
    assert_eq!(loads, [Load::Compile("qsgd_combine".to_owned()), Load::Image]);
    assert!(matches!(&cached, Cached::NotStored { reason } if reason.contains("below")), "{cached:?}");
    std::fs::remove_file(&folder.0).expect("it is there");

    // A driver that hands out nothing it compiles, and one that does not take it back.
    let folder = Folder::new("unsupported");
    for (refused, error) in [
        (Load::Compile("qsgd_combine".to_owned()), DriverError::Unsupported { what: "compiling to bytes" }),
        (Load::Image, DriverError::Image { code: 200, name: "A_NAME".to_owned(), bytes: 1 }),
    ] {
        let loads = machine();
        loads.refusing(move |load, _| (*load == refused).then(|| error.clone()));
        let (loads, cached) = with_cache(loads, &folder.0);
        assert_eq!(loads.last(), Some(&text("qsgd_combine")));
        assert!(matches!(cached, Cached::NotStored { .. }), "{cached:?}");
    }
    assert!(!folder.0.exists());

    // A text that the driver refuses is as it is without a cache: the next target.
    let loads = machine();
    loads.refusing(|load, ptx| {
        (matches!(load, Load::Compile(_)) && ptx.contains(".target sm_80")).then(|| refusal(ptx))
    });
    assert_eq!(with_cache(loads, &folder.0).1, Cached::Stored);
    // And a failure of the driver's is one.
    let (notes, cuda) = open(machine());
    cuda.cache_in(Some(folder.0.clone()));
    notes.refusing(|_, _| Some(of_driver(719)));
    let error = encodes(&cuda).expect_err("the driver fails");
    assert!(matches!(error, Error::Backend { .. }), "{error:?}");
    // Nothing is written where no folder is named any more.
    let before = folder.files().len();
    notes.refusing_nothing();
    cuda.cache_in(None);
    cuda.warm_up(&CodecFamily::ALL).expect("it takes them");
    assert_eq!(folder.files().len(), before);
    assert!(cuda.loaded().iter().all(|family| family.cached == Cached::Off));
}

#[test]
fn processes_that_write_one_file_at_once_leave_a_whole_one() {
    let folder = Folder::new("race");
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| with_cache(machine(), &folder.0));
        }
    });
    assert_eq!(with_cache(machine(), &folder.0), (vec![Load::Image], Cached::Hit));
    assert_eq!(folder.files().len(), 1, "{:?}", folder.files());
}
