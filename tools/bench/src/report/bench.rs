//! The timings of one device: its copy rate, and every job at every size, over sets of buffers that take turns.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use gradwire::session::{Clock, Role, Session, Sizes};
use gradwire::{BackendKind, Codec, Device, Dtype, Error, Qsgd, Seed};

use super::chosen::chosen;
use super::event::{Event, emit, open};
use super::models;
use super::place::Place;
#[cfg(feature = "cuda")]
use super::schema::FamilyRow;
use super::schema::{ClockName, Report, Row};
use crate::bench::source::{Typed, synthetic};
use crate::jobs::Job;
use crate::jobs::rotate::{Sets, repeated};
use crate::jobs::timing::{SAMPLE, Slice, sample};

/// How a device is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Profile {
    /// Elements, the most telling first, in case the time is short.
    sizes: &'static [usize],
    /// Bytes that a turn through all sets touches. 1 GiB is eight times the largest L2 of any GPU so far.
    rotate: u64,
    /// Bytes of each buffer of the copy.
    copy: u64,
    /// Bytes that all sets together may take.
    memory: u64,
    /// Seconds of a sample.
    sample: f64,
    /// The most time for one operation: longer makes a median no better.
    slice: Duration,
}

fn profile(place: Place, device: &Device, quick: bool) -> Profile {
    let gpu = Profile {
        sizes: &[1 << 24, 1 << 26, 1 << 20, 1 << 28, 1 << 16, 1 << 22],
        rotate: 1 << 30,
        copy: 1 << 30,
        memory: memory(place),
        sample: SAMPLE,
        slice: Duration::from_millis(600),
    };
    let full = match place {
        // An interpreter is some ten thousand times slower than what it stands for.
        Place::PtxMachine(_) => Profile {
            sizes: &[1 << 14],
            rotate: 1 << 17,
            copy: 1 << 20,
            memory: 1 << 26,
            sample: 0.0,
            slice: Duration::from_millis(60),
        },
        Place::Wgpu if device.is_software() => {
            Profile { sizes: &[1 << 18], rotate: 1 << 22, copy: 1 << 26, memory: 1 << 29, ..gpu }
        }
        // Its sessions hold one tensor, and the larger sizes leave its caches.
        Place::Cpu => Profile { sizes: &[1 << 24, 1 << 26, 1 << 20], rotate: 0, copy: 1 << 28, memory: 1 << 31, ..gpu },
        Place::Cuda(_) | Place::Wgpu => gpu,
    };
    if !quick {
        return full;
    }
    let sizes: &[usize] = match place {
        Place::PtxMachine(_) => &[1 << 14],
        Place::Wgpu if device.is_software() => &[1 << 16],
        _ => &[1 << 20],
    };
    Profile { sizes, copy: full.copy.min(1 << 26), ..full }
}

/// Bytes that the sets may take on a GPU: most of what it has, where that is known.
fn memory(place: Place) -> u64 {
    #[cfg(feature = "cuda")]
    if let Place::Cuda(_) = place {
        use gradwire::backend::cuda::driver::Driver;
        if let Ok(driver) = super::place::cuda::driver() {
            return driver.info().total_memory / 10 * 6;
        }
    }
    let _ = place;
    4 << 30
}

/// Has the kernels compiled, one family of codecs after another, and tells what each took: on CUDA.
fn warm_up(place: Place, device: &Device) -> Result<(), Error> {
    #[cfg(feature = "cuda")]
    if matches!(place, Place::Cuda(_)) {
        device.warm_up(&gradwire::CodecFamily::ALL)?;
        for family in device.loaded() {
            let row = FamilyRow { family: family.name.to_owned(), target: family.target, seconds: family.seconds };
            emit(&Event::Family { row });
        }
    }
    let _ = (place, device);
    Ok(())
}

/// What is to be timed.
pub(crate) struct Wanted<'a> {
    /// Codecs whose names begin so.
    pub(crate) codec: &'a str,
    /// What has been timed already.
    pub(crate) have: HashSet<Timed>,
}

/// A timing's elements, type, codec, setting and operation.
pub(crate) type Timed = (usize, String, String, String, String);

/// The timings that a report has of a device.
pub(crate) fn timed_before(path: &Path, place: Place) -> Result<HashSet<Timed>, String> {
    let mut report = Report::open(path)?;
    let rows = std::mem::take(&mut report.device(place.backend()).rows);
    Ok(rows.into_iter().map(|row| (row.elements, row.dtype, row.codec, row.setting, row.op)).collect())
}

impl Wanted<'_> {
    fn wants(&self, job: &Job, n: usize, dtype: Dtype) -> bool {
        let timed = (n, dtype.name().to_owned(), job.codec.to_owned(), job.setting.clone(), job.op.to_string());
        job.codec.starts_with(self.codec) && !self.have.contains(&timed)
    }
}

/// Measures what is wanted, as far as the seconds allow.
pub(crate) fn run(place: Place, seconds: f64, quick: bool, wanted: &Wanted<'_>, apart: bool) -> Result<(), String> {
    let opened = if apart { opened_apart(place) } else { open(place) };
    let Some(device) = opened else { return Ok(()) };
    warm_up(place, &device).map_err(|e| e.to_string())?;
    let deadline = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 1e6));
    let profile = profile(place, &device, quick);
    let said = |e: Error| e.to_string();
    copy(place, &device, &profile).map_err(said)?;
    launch(&device).map_err(said)?;
    if place == Place::Cpu {
        let what = "top-k and packed codes, which the CPU makes without passes; `cargo xtask bench` times them";
        emit(&Event::Skipped { what: what.to_owned() });
    }
    let mut models = models::all(place, device.is_software(), quick);
    models.retain(|_| "PowerSGD".starts_with(wanted.codec));
    let mut left = profile.sizes.len() * 2 + models.len();
    for n in profile.sizes.iter().copied() {
        // A set has some 20 bytes per element, and this machine holds the gradient several times over.
        if 24 * n as u64 > profile.memory {
            emit(&Event::Skipped {
                what: format!("2^{} elements: they are more than is taken of the memory", n.ilog2()),
            });
            left -= 2;
            continue;
        }
        // Drawn once a size: heavy tails, as gradients have them, and the same values for every device.
        let values = if Instant::now() < deadline { synthetic(n) } else { Vec::new() };
        for dtype in [Dtype::F32, Dtype::Bf16] {
            if Instant::now() >= deadline {
                emit(&Event::Skipped {
                    what: format!("2^{} elements of {}: the time was up", n.ilog2(), dtype.name()),
                });
                continue;
            }
            let share = (deadline - Instant::now()) / left.max(1) as u32;
            left -= 1;
            group(&device, &profile, &Typed::new(&values, dtype), n, dtype, share, wanted)?;
        }
        copy(place, &device, &profile).map_err(said)?;
    }
    for model in models {
        let share = deadline.saturating_duration_since(Instant::now()) / left.max(1) as u32;
        left -= 1;
        whole(&device, &profile, &model, share, wanted)?;
    }
    Ok(())
}

/// The device, on which every launch waits for the end of the one before it.
fn opened_apart(place: Place) -> Option<Device> {
    #[cfg(feature = "cuda")]
    if place == Place::Cuda(None) {
        return match gradwire::backend::cuda::Cuda::open() {
            Ok(cuda) => {
                cuda.overlap_launches(false);
                Some(Device::from_cuda(cuda))
            }
            Err(error) => {
                emit(&Event::Missing { why: error.to_string() });
                None
            }
        };
    }
    open(place)
}

/// A step of PowerSGD for a whole model.
fn whole(
    device: &Device,
    profile: &Profile,
    model: &models::Model,
    time: Duration,
    wanted: &Wanted<'_>,
) -> Result<(), String> {
    let (deadline, n) = (Instant::now() + time, model.elements());
    let skip = |why: &dyn std::fmt::Display| emit(&Event::Skipped { what: format!("{}: {why}", model.name) });
    if 24 * n as u64 > profile.memory {
        skip(&"it is more than is taken of the memory");
        return Ok(());
    }
    let job = match model.job(&device.limits()) {
        Ok(Some(job)) => job,
        Ok(None) => return Ok(()),
        // A binding that is too small for the model's factors is the device's, and no fault.
        Err(error) => {
            skip(&error);
            return Ok(());
        }
    };
    if !wanted.wants(&job, n, Dtype::F32) {
        return Ok(());
    }
    let Some((mut session, sets)) = room(device, profile, job.sizes, 4 * n as u64, &skip) else { return Ok(()) };
    if Instant::now() >= deadline {
        skip(&"the time was up");
        return Ok(());
    }
    emit(&Event::Next { what: format!("{} {} {}", job.codec, job.setting, job.op) });
    let slice = Slice { time: time.min(profile.slice), sample: profile.sample };
    let row = timed(&job, session.as_mut(), &sets, slice).map_err(|e| format!("{}: {e}", model.name))?;
    emit(&Event::Row { row: Row { elements: n, dtype: Dtype::F32.name().to_owned(), ..row } });
    Ok(())
}

/// A session with as many sets of buffers as `touched` bytes of each run make worth while, or as there is memory for.
fn room<'d>(
    device: &'d Device,
    profile: &Profile,
    one: Sizes,
    touched: u64,
    skip: &dyn Fn(&dyn std::fmt::Display),
) -> Option<(Box<dyn Session + 'd>, Sets)> {
    let mut sets = Sets::new(one, touched, profile.rotate, profile.memory);
    loop {
        match device.session(sets.sizes()) {
            Ok(session) => return Some((session, sets)),
            Err(error) => match sets.fewer() {
                Some(fewer) => sets = fewer,
                None => {
                    skip(&error);
                    return None;
                }
            },
        }
    }
}

/// Runs each operation's passes once, and says before each which kernels it launches, in order: what a profiler that
/// stands around this process shows are these launches.
pub(crate) fn once(place: Place, n: usize, codec: &str) -> Result<(), String> {
    let Some(device) = open(place) else { return Ok(()) };
    let said = |e: Error| e.to_string();
    let values = synthetic(n);
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let mut jobs = chosen(n, dtype, &device.limits(), device.kind() != BackendKind::Cpu, &mut Vec::new());
        let jobs = jobs.as_mut().map_err(|e| e.to_string())?;
        jobs.retain(|job| job.codec.starts_with(codec));
        let one = jobs.iter().fold(Sizes::default(), |sizes, job| sizes.max(job.sizes));
        let sets = Sets::new(one, 1, 1, u64::MAX);
        let mut session = device.session(sets.sizes()).map_err(said)?;
        let gradient = Typed::new(&values, dtype);
        fill(session.as_mut(), &sets, gradient.gradient().as_bytes(), one.of(Role::Residual)).map_err(said)?;
        for job in jobs {
            if let Some(prepare) = &job.prepare {
                prepare(session.as_mut(), &|role| sets.at(0, role)).map_err(said)?;
            }
            let passes = sets.turn(&[job.before.clone(), job.passes.clone()].concat());
            let kernels: Vec<&str> = passes.iter().map(|pass| pass.kernel().name()).collect();
            let what = format!("{} {} {} {}: {}", job.codec, job.setting, job.op, dtype.name(), kernels.join(" "));
            emit(&Event::Next { what });
            // SAFETY: as in `timed`.
            unsafe { session.run_trusted(&passes) }.map_err(said)?;
        }
    }
    Ok(())
}

/// The rate of the device's own copy from one buffer to another.
fn copy(place: Place, device: &Device, profile: &Profile) -> Result<(), Error> {
    let mut sizes = Sizes::default();
    let bytes = profile.copy.min(profile.memory / 4);
    sizes.0[Role::Input as usize] = bytes;
    sizes.0[Role::Output as usize] = bytes;
    let mut session = device.session(sizes)?;
    // Data that no hardware can take for zeros; and where memory is watched, written before it is read.
    let pattern: Vec<u32> = (0..1u32 << 18).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let pattern: &[u8] = bytemuck::cast_slice(&pattern);
    repeated(session.as_mut(), Role::Input, 0..bytes, pattern)?;
    let clock = match (place, session.clock()) {
        (Place::PtxMachine(_), _) => ClockName::Interpreter,
        (_, Clock::Device) => ClockName::Device,
        (_, Clock::Host) => ClockName::Host,
    };
    emit(&Event::Clock { clock });
    let slice = Slice { time: profile.slice, sample: profile.sample };
    let timing = sample(slice, 1, |repeats| session.time_copy(Role::Input, Role::Output, repeats).map(|t| t.0))?;
    emit(&Event::Copy { gbps: 2e-9 * bytes as f64 / timing.median });
    Ok(())
}

/// The time between launches of a kernel that has a single unit to encode.
fn launch(device: &Device) -> Result<(), Error> {
    let plan = Qsgd::bits(4).bucket(32).plan(256, Dtype::F32)?;
    let passes = plan.passes(Seed::new(1), &device.limits())?;
    let mut session = device.session(plan.sizes())?;
    session.write(Role::Input, 0, &[1; 1024])?;
    let slice = Slice { time: Duration::from_millis(300), sample: 1e-3 };
    let timing = sample(slice, 1, |repeats| session.time(&passes, repeats))?;
    emit(&Event::Launch { seconds: timing.median / passes.len().max(1) as f64 });
    Ok(())
}

/// Every operation on one gradient.
fn group(
    device: &Device,
    profile: &Profile,
    gradient: &Typed<'_>,
    n: usize,
    dtype: Dtype,
    time: Duration,
    wanted: &Wanted<'_>,
) -> Result<(), String> {
    let deadline = Instant::now() + time;
    let label = format!("2^{} elements of {}", n.ilog2(), dtype.name());
    let skip = |why: &dyn std::fmt::Display| emit(&Event::Skipped { what: format!("{label}: {why}") });
    let mut left_out = Vec::new();
    let selects = device.kind() != BackendKind::Cpu;
    let mut jobs = match chosen(n, dtype, &device.limits(), selects, &mut left_out) {
        Ok(jobs) => jobs,
        // A binding or a launch that is too small for the tensor is the device's, and no fault.
        Err(error) => {
            skip(&error);
            return Ok(());
        }
    };
    left_out.iter().for_each(|why| skip(why));
    let touched = jobs.first().map_or(1, |job| job.floor);
    jobs.retain(|job| wanted.wants(job, n, dtype));
    if jobs.is_empty() {
        return Ok(());
    }
    let one = jobs.iter().fold(Sizes::default(), |sizes, job| sizes.max(job.sizes));
    let Some((mut session, sets)) = room(device, profile, one, touched, &skip) else { return Ok(()) };
    let said = |e: Error| format!("{label}: {e}");
    fill(session.as_mut(), &sets, gradient.gradient().as_bytes(), one.of(Role::Residual)).map_err(said)?;
    let count = jobs.len() as u32;
    for (done, job) in (0u32..).zip(&jobs) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            emit(&Event::Skipped { what: format!("{label}: the last {} operations; the time was up", count - done) });
            return Ok(());
        }
        emit(&Event::Next { what: format!("{} {} {}, {label}", job.codec, job.setting, job.op) });
        let time = (left / (count - done)).min(profile.slice);
        let slice = Slice { time, sample: profile.sample };
        let mut row = timed(job, session.as_mut(), &sets, slice).map_err(said)?;
        if let Some(check) = &job.check {
            let last = sets.count - 1;
            if let Err(why) = check(session.as_mut(), &|role| sets.at(last, role), gradient.gradient()) {
                emit(&Event::Wrong { what: format!("{} {} {}, {label}: {why}", job.codec, job.setting, job.op) });
                continue;
            }
            row.checked = true;
        }
        emit(&Event::Row { row: Row { elements: n, dtype: dtype.name().to_owned(), ..row } });
    }
    Ok(())
}

/// The gradient in every set, and residuals of zeros.
fn fill(session: &mut dyn Session, sets: &Sets, gradient: &[u8], residual: u64) -> Result<(), Error> {
    let zeros = vec![0; residual as usize];
    for set in 0..sets.count {
        session.write(Role::Input, sets.at(set, Role::Input), gradient)?;
        session.write(Role::Residual, sets.at(set, Role::Residual), &zeros)?;
    }
    Ok(())
}

fn timed(job: &Job, session: &mut dyn Session, sets: &Sets, slice: Slice) -> Result<Row, Error> {
    if let Some(prepare) = &job.prepare {
        (0..sets.count).try_for_each(|set| prepare(session, &|role| sets.at(set, role)))?;
    }
    // SAFETY: `prepare` writes the tables of each set; a job lists all passes of a plan, and before them those that
    // they go on from.
    unsafe { session.run_trusted(&sets.turn(&job.before))? };
    let turn = sets.turn(&job.passes);
    // SAFETY: as above; whatever a job's passes leave, they may run again.
    let timing = sample(slice, sets.count, |repeats| unsafe { session.time_trusted(&turn, repeats) })?;
    Ok(Row {
        codec: job.codec.to_owned(),
        setting: job.setting.clone(),
        op: job.op.to_string(),
        seconds: timing.median,
        seconds_p25: timing.p25,
        seconds_p75: timing.p75,
        samples: timing.samples,
        runs: timing.runs,
        sets: sets.count,
        rotated_bytes: job.floor * u64::from(sets.count),
        passes: job.passes.len(),
        floor_bytes: job.floor,
        gbps: 1e-9 * job.floor as f64 / timing.median.max(1e-12),
        ..Row::default()
    })
}
