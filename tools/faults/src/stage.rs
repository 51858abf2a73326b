//! One operation on one backend, in a process of its own: a call fails, then the next one, and what comes of each goes
//! to standard output.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use gradwire::{BackendKind, Error};

use super::control::{Control, Mode};
use super::fixtures::{Answer, Failed, Opened, UNPREPARED};
use super::operations::{ALL, Operation};
use gradwire_tests::require::parse_kind;

/// The part of a run that is one process.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which backend.
    #[arg(long, value_parser = parse_kind)]
    backend: BackendKind,
    /// Which operation.
    #[arg(long)]
    operation: String,
    /// The library that fails calls. Without it, this program's allocator refuses.
    #[arg(long)]
    library: Option<PathBuf>,
    /// The first fault, counted from zero.
    #[arg(long)]
    from: usize,
    /// How far it is to the next one.
    #[arg(long)]
    every: usize,
}

/// How long a call may take, even one on an interpreter or of a large tensor.
const PATIENCE: Duration = Duration::from_secs(60);

/// Milliseconds since the start at which the fault under way began; zero between faults.
static BEGAN: AtomicU64 = AtomicU64::new(0);

/// What an operation does without a fault.
struct Counted {
    expected: Vec<u8>,
    calls: u64,
    /// The calls that can fail, each with how.
    faults: Vec<(u64, Mode)>,
}

/// What came of an operation during which a call failed.
type Caught = std::thread::Result<Answer>;

pub(crate) fn run(args: &Args) -> Result<(), String> {
    let known = ALL.iter().find(|operation| operation.name == args.operation);
    let operation = known.ok_or_else(|| format!("no operation is named {}", args.operation))?;
    let control = match &args.library {
        Some(library) => Control::open(library)?,
        None => Control::of_allocator(),
    };
    // What is caught is told on standard output; the words of a panic that the library contains are nobody's.
    std::panic::set_hook(Box::new(|_| {}));
    watch();
    if args.backend == BackendKind::Cpu {
        // Threads of a pool that nobody has used yet are rayon's to start, and not the library's.
        let started =
            gradwire::Device::cpu().encode(&gradwire::Qsgd::bits(4), &vec![1.0; 1 << 20], gradwire::Seed::new(1));
        drop(started.map_err(|error| error.to_string())?);
    }
    let mut stage = Stage { kind: args.backend, operation, control: &control, opened: None };
    let Counted { expected, calls, faults } = stage.count()?;
    println!("calls {calls}");
    for (index, (nth, mode)) in faults.into_iter().enumerate().skip(args.from).step_by(args.every) {
        println!("begin {index} call {nth}, {}", mode.name());
        begin();
        let (verdict, hit) = stage.fail(nth, mode, &expected);
        BEGAN.store(0, SeqCst);
        println!("done {index} {verdict}\t{}", hit.unwrap_or_else(|| "nothing".to_owned()));
        let _ = std::io::stdout().flush();
    }
    println!("end");
    Ok(())
}

/// Ends the process where a fault is not over in time.
fn watch() {
    start();
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let began = BEGAN.load(SeqCst);
            if began != 0 && start().elapsed() > Duration::from_millis(began) + PATIENCE {
                println!("hang");
                let _ = std::io::stdout().flush();
                std::process::exit(3);
            }
        }
    });
}

fn start() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(Instant::now)
}

fn begin() {
    BEGAN.store((start().elapsed().as_millis() as u64).max(1), SeqCst);
}

struct Stage<'a> {
    kind: BackendKind,
    operation: &'a Operation,
    control: &'a Control,
    /// A device that is known to be right, for the next fault. Not on wgpu: a device that was used there has its
    /// pipelines, and making them is what may fail.
    opened: Option<Opened>,
}

impl Stage<'_> {
    fn is_opening(&self) -> bool {
        self.operation.name == "open"
    }

    /// What is right, how many calls it takes (those of the operation, and of letting go of the device), and each call
    /// once for want of memory, and once with the device lost if it may tell of that.
    fn count(&mut self) -> Result<Counted, String> {
        self.control.set(0, Mode::Memory);
        let mut opened = None;
        let answer = self.run(&mut opened);
        let expected = answer.map_err(|failed| format!("without a fault: {}", failed.error))?;
        drop(opened);
        let calls = self.control.calls();
        let first = 1 + calls.saturating_sub(self.operation.last);
        let faults = (first..=calls).flat_map(|nth| {
            let lost = self.control.may_lose(nth).then_some((nth, Mode::Lost));
            [Some((nth, Mode::Memory)), lost].into_iter().flatten()
        });
        Ok(Counted { expected, calls, faults: faults.collect() })
    }

    /// Opens a device, if there is none, and runs the operation there.
    fn run(&self, opened: &mut Option<Opened>) -> Answer {
        // Of every other operation the calls are counted once it is prepared.
        if self.is_opening() {
            self.control.arm();
        }
        let changed = (!self.is_opening()).then_some(UNPREPARED);
        let device = match opened {
            Some(device) => device,
            None => opened.insert(Opened::of(self.kind).map_err(|error| Failed { error, changed })?),
        };
        (self.operation.run)(device, self.control)
    }

    /// Fails a call, and judges.
    fn fail(&mut self, nth: u64, mode: Mode, expected: &[u8]) -> (String, Option<String>) {
        self.control.set(nth, mode);
        let mut opened = self.opened.take();
        let result: Caught = catch_unwind(AssertUnwindSafe(|| self.run(&mut opened)));
        let mut verdict = verdict(&result, expected);
        let mut hit = self.control.hit();
        if hit.is_some()
            && let Some(device) = &opened
        {
            match self.again(device, mode, expected) {
                Some(problem) => verdict = problem,
                // It went on, and was right.
                None if self.goes_on(mode) => self.opened = opened.take(),
                None => {}
            }
        }
        // Where no call has failed yet, it is one of those that let go of the device.
        if catch_unwind(AssertUnwindSafe(|| drop(opened.take()))).is_err() {
            verdict = "WRONG a panic when the device was let go".to_owned();
        }
        hit = hit.or_else(|| self.control.hit());
        self.control.set(0, Mode::Memory);
        self.control.disarm();
        self.control.revive();
        // Opening anew takes an interpreter long, and the next fault opens anyway.
        let looks = !self.is_opening() || nth.is_multiple_of(8);
        if looks
            && self.opened.is_none()
            && let Some(problem) = self.afresh(expected)
        {
            verdict = problem;
        }
        (verdict, hit)
    }

    /// Whether a device is as it was once a call has failed. What wgpu makes of a want of memory is its own choice.
    fn goes_on(&self, mode: Mode) -> bool {
        self.kind != BackendKind::Wgpu && mode == Mode::Memory && !self.is_opening()
    }

    /// The same call on the same device, without a fault: right if it goes on, and else at least an error.
    fn again(&self, opened: &Opened, mode: Mode, expected: &[u8]) -> Option<String> {
        self.control.set(0, Mode::Memory);
        self.control.disarm();
        let result: Caught = catch_unwind(AssertUnwindSafe(|| (self.operation.run)(opened, self.control)));
        let verdict = verdict(&result, expected);
        // On a device that was lost, what prepares the call fails as well.
        let unprepared = matches!(&result, Ok(Err(Failed { changed: Some(UNPREPARED), error: Error::Backend { .. } })));
        let well = verdict == "right" || (!self.goes_on(mode) && (verdict == "typed" || unprepared));
        (!well).then(|| format!("WRONG on the same device afterwards, {verdict}"))
    }

    /// The same call on another device.
    fn afresh(&mut self, expected: &[u8]) -> Option<String> {
        let mut opened = None;
        let result: Caught = catch_unwind(AssertUnwindSafe(|| self.run(&mut opened)));
        let verdict = verdict(&result, expected);
        if self.goes_on(Mode::Memory) {
            self.opened = opened;
        }
        (verdict != "right").then(|| format!("WRONG on a new device, {verdict}"))
    }
}

fn verdict(result: &Caught, expected: &[u8]) -> String {
    match result {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            format!("WRONG a panic: {}", text.unwrap_or_default().replace(['\n', '\t'], " "))
        }
        Ok(Ok(found)) if found == expected => "right".to_owned(),
        Ok(Ok(_)) => "WRONG an answer that differs".to_owned(),
        Ok(Err(failed)) => match (&failed.changed, &failed.error) {
            (Some(what), error) => format!("WRONG {what} changed: {error}").replace(['\n', '\t'], " "),
            (None, Error::Backend { .. } | Error::Unavailable { .. }) => "typed".to_owned(),
            (None, error) => format!("WRONG an error of another kind: {error}").replace(['\n', '\t'], " "),
        },
    }
}
