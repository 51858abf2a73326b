//! The operations that are run, and whether the machine code gives the CPU's bytes.

use std::sync::Arc;

use gradwire::Device;
use gradwire::backend::cuda::Cuda;
use gradwire_tests::{cases, traffic};

use super::SassError;
use super::machine::{Launched, Machine};
use super::tools::Tools;

/// An operation that was run.
pub(super) struct Ran {
    pub(super) codec: String,
    pub(super) op: String,
    /// Elements.
    pub(super) n: usize,
    /// Bytes per element that it cannot do without.
    pub(super) floor: f64,
    pub(super) launched: Vec<Launched>,
}

/// Runs every operation that launches a kernel whose name has `filter` in it.
pub(super) fn all(tools: &Arc<Tools>, sm: u32, filter: &str) -> Result<Vec<Ran>, SassError> {
    let machine = Arc::new(Machine::new(tools.clone(), sm, 16));
    let fail = |job: &str, why: String| SassError::Job { job: job.to_owned(), why };
    let device = Cuda::with_driver(machine.clone(), None).map_err(|e| fail("opening the device", e.to_string()))?;
    let device = Device::from_cuda(device);
    let (cpu, x) = (Device::cpu(), cases::normal(traffic::N, 5));
    let mut all = Vec::new();
    for job in traffic::jobs() {
        let name = format!("{}, {}", job.label, job.op.name());
        let failed = |e: gradwire::Error| fail(&name, e.to_string());
        let payload = cpu.encode(&job.codec, &x, cases::seed()).map_err(failed)?;
        let payloads = vec![payload; traffic::SUMMED];
        let start = std::time::Instant::now();
        let found = match job.run(&device, &x, &payloads) { Ok(f) => f, Err(e) => { eprintln!("{name}: {e}"); continue } };
        let expected = job.run(&cpu, &x, &payloads).map_err(failed)?;
        let launched = machine.take_launched();
        let floor = launched.iter().map(|l| job.floor(&l.kernel.code.name)).fold(0.0, f64::max);
        eprintln!("{name}: {} in {:?}", if found == expected { "same" } else { "DIFFERENT" }, start.elapsed());
        all.push(Ran { codec: job.label.to_owned(), op: job.op.name().to_owned(), n: traffic::N, floor, launched });
    }
    Ok(all)
}
