//! `cargo xtask bench --top-k` and `--powersgd` on a device that runs passes: the report's jobs over one tensor that stays on the
//! device, each checked against the CPU before it is timed.

use std::time::Duration;

use gradwire::session::{Clock, Role, Sizes};
use gradwire::{Device, Dtype, Error, Gradient, Matrix, PowerSgd, Seed};
use gradwire_tests::low_rank::{alone, apart};
use gradwire_tests::{cases, oracle::powersgd::Dense};

use super::size::grouped;
use super::source::Source;
use super::table::significant;
use super::timing::{Budget, share};
use crate::report::jobs::{self, Job};
use crate::report::rotate::repeated;

/// Time for all timings of a run together.
const TIME: Duration = Duration::from_secs(60);

/// Rows, columns and rank of the matrices that a device in software gets through.
const SMALL: [(u64, u64, u32); 3] = [(512, 512, 1), (512, 512, 4), (512, 512, 8)];

/// A job's seconds.
struct Timed {
    setting: String,
    op: &'static str,
    /// Bytes of the gradient.
    gradient: u64,
    /// Bytes that it cannot do without.
    floor: u64,
    seconds: f64,
}

/// Times top-k, and prints.
pub(super) fn top_k(device: &Device, source: Option<&Source>, n: usize) -> Result<(), String> {
    let x = source.map_or_else(|| cases::normal(n, 1), |source| source.repeated(n));
    println!("{device}: top-k of {} f32, {}", grouped(n), source.map_or("normal", |source| &source.label));
    let jobs = jobs::selections(n, Dtype::F32, &device.limits()).map_err(|e| too_small(device, &e))?;
    let mut budget = Budget::new(TIME, jobs.len() as u32 + 1);
    let copy = copy_rate(device, n, &mut budget).map_err(|e| too_small(device, &e))?;
    let timed = jobs.iter().map(|job| time(device, &x, job, &mut budget)).collect::<Result<Vec<_>, _>>()?;
    print(&timed, copy);
    Ok(())
}

/// Times steps of PowerSGD for matrices of these rows, columns and ranks, and prints.
pub(super) fn power_sgd(device: &Device, matrices: &[(u64, u64, u32)]) -> Result<(), String> {
    println!("{device}: a step of PowerSGD with error feedback, f32, one worker");
    let matrices = if device.is_software() { &SMALL } else { matrices };
    let mut budget = Budget::new(TIME, matrices.len() as u32 + 1);
    let largest = matrices.iter().map(|(rows, columns, _)| rows * columns).max().unwrap_or(0) as usize;
    let copy = copy_rate(device, largest, &mut budget).map_err(|e| too_small(device, &e))?;
    let mut timed = Vec::new();
    for (rows, columns, rank) in matrices {
        let (tensors, setting) = ([Matrix::new(*rows, *columns)], format!("{rows} x {columns}, rank {rank}"));
        let job = jobs::step(*rank, setting.clone(), &tensors, Dtype::F32, &device.limits());
        let Some(job) = job.map_err(|e| too_small(device, &e))? else { continue };
        let x = cases::normal((rows * columns) as usize, 1);
        near_the_cpu(device, &x, *rank, tensors[0]).map_err(|e| format!("{setting}: {e}"))?;
        timed.push(time(device, &x, &job, &mut budget)?);
    }
    print(&timed, copy);
    Ok(())
}

fn too_small(device: &Device, error: &Error) -> String {
    format!("{device}: {error}; try a smaller --size, or --device cpu")
}

/// A step's output within the tolerance between backends, since its bits are one backend's own.
fn near_the_cpu(device: &Device, x: &[f32], rank: u32, matrix: Matrix) -> Result<(), String> {
    let step = |on: &Device| -> Result<Vec<f32>, Error> {
        let mut state = PowerSgd::rank(rank).state(&[matrix], Seed::new(1))?;
        let mut output = vec![0.0; x.len()];
        on.low_rank_step(&mut state, x, &mut output, alone).map(|()| output)
    };
    let (found, expected) = (step(device), step(&Device::cpu()));
    let (found, expected) = (found.map_err(|e| e.to_string())?, expected.map_err(|e| e.to_string())?);
    let dense = |x: &[f32]| Dense::of(1, x.len(), x);
    let off = dense(&found).minus(&dense(&expected)).norm() / dense(x).norm();
    if off <= apart(rank) {
        return Ok(());
    }
    Err(format!("the output is {off:.1e} of the gradient away from the CPU's; `cargo xtask verify` says more"))
}

/// Bytes read plus written each second by the device's own copy of the tensor.
fn copy_rate(device: &Device, n: usize, budget: &mut Budget) -> Result<f64, Error> {
    let mut sizes = Sizes::default();
    for role in [Role::Input, Role::Output] {
        sizes.0[role as usize] = 4 * n as u64;
    }
    let mut session = device.session(sizes)?;
    repeated(session.as_mut(), Role::Input, 0..4 * n as u64, &[0x5a; 1 << 16])?;
    let mut copied = 0;
    let seconds = budget.median(|repeats| {
        let (seconds, bytes) = session.time_copy(Role::Input, Role::Output, repeats)?;
        copied = bytes;
        Ok(seconds)
    })?;
    let rate = 2.0 * copied as f64 / seconds.max(1e-12);
    let clock = if session.clock() == Clock::Device { "the device's clock" } else { "this machine's clock" };
    println!("copy: {} GB/s, read and written; all by {clock}, of what lies on the device", significant(1e-9 * rate));
    Ok(rate)
}

fn time(device: &Device, x: &[f32], job: &Job, budget: &mut Budget) -> Result<Timed, String> {
    let said = |e: Error| format!("{} {}, {}: {e}", job.codec, job.setting, job.op);
    let mut session = device.session(job.sizes).map_err(|e| too_small(device, &e))?;
    session.write(Role::Input, 0, bytemuck::cast_slice(x)).map_err(said)?;
    let residual = job.sizes.of(Role::Residual);
    repeated(session.as_mut(), Role::Residual, 0..residual, &[0; 1 << 16]).map_err(said)?;
    if let Some(prepare) = &job.prepare {
        prepare(session.as_mut(), &|_| 0).map_err(said)?;
    }
    // SAFETY: `prepare` has written the tables; a job lists all passes of a plan, and before them those that they go on from.
    unsafe { session.run_trusted(&job.before) }.map_err(said)?;
    if let Some(check) = &job.check {
        // SAFETY: as above.
        unsafe { session.run_trusted(&job.passes) }.map_err(said)?;
        check(session.as_mut(), &|_| 0, Gradient::F32(x))
            .map_err(|why| format!("{} {}, {}: {why}", job.codec, job.setting, job.op))?;
    }
    // SAFETY: as above; whatever a job's passes leave, they may run again.
    let timed = |repeats| unsafe { session.time_trusted(&job.passes, repeats) };
    let seconds = budget.median(timed).map_err(said)?;
    let gradient = 4 * x.len() as u64;
    Ok(Timed { setting: job.setting.clone(), op: job.op, gradient, floor: job.floor, seconds })
}

fn print(timed: &[Timed], copy: f64) {
    println!("{:>24} {:>20} {:>10} {:>14} {:>10}", "", "", "ms", "gradient GB/s", "of a copy");
    for t in timed {
        println!(
            "{:>24} {:>20} {:>10} {:>14} {:>9.0}%",
            t.setting,
            t.op,
            significant(t.seconds * 1e3),
            significant(1e-9 * t.gradient as f64 / t.seconds.max(1e-12)),
            100.0 * share(t.floor, t.seconds.max(1e-12), copy)
        );
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::report::place::Place;

    #[test]
    fn every_job_is_timed_and_checked_on_a_device_that_runs_passes() {
        let device = Place::PtxMachine(60).open().unwrap();
        let (x, mut budget) = (cases::normal(20_011, 1), Budget::new(Duration::ZERO, 1));
        let jobs = jobs::selections(x.len(), Dtype::F32, &device.limits()).unwrap();
        assert_eq!(jobs.len(), 9, "three operations of three parts");
        for job in &jobs {
            let timed = time(&device, &x, job, &mut budget).unwrap();
            assert!(timed.seconds > 0.0 && timed.floor == job.floor, "{} {}", job.setting, job.op);
        }
        let wrong = Job {
            passes: jobs[3].passes.clone(),
            ..jobs::selections(x.len(), Dtype::F32, &device.limits()).unwrap().remove(0)
        };
        assert!(time(&device, &x, &wrong, &mut budget).is_err(), "the entries of another part are not taken");
        power_sgd(&device, &[(64, 48, 2)]).unwrap();
    }
}
