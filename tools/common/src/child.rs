//! Another process, listened to line by line until it ends or its time is up.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// What comes of listening.
pub enum Heard<'a> {
    /// A line of its standard output.
    Line(&'a str),
    /// Some seconds have gone by.
    Tick,
}

/// How often [`Heard::Tick`] comes.
const TICK: Duration = Duration::from_secs(4);
/// How often it is looked whether a process that says nothing has ended.
const LOOK: Duration = Duration::from_millis(250);
/// Lines of its standard error that are kept, the last ones.
const KEPT: usize = 12;

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; none if it was killed.
    pub code: Option<i32>,
    /// It was killed here, because the time was up.
    pub out_of_time: bool,
    /// The end of its standard error.
    pub words: String,
}

impl Ended {
    /// Whether its exit code is 0.
    #[must_use]
    pub fn well(&self) -> bool {
        self.code == Some(0)
    }
}

/// Runs a command until it ends, or until the deadline, when it is killed.
pub fn listen(command: &mut Command, deadline: Instant, mut hear: impl FnMut(Heard<'_>)) -> Result<Ended, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.map_err(|e| format!("{name} could not be started: {e}"))?;
    let (send, receive) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        lines(out, send);
    }
    let (send_words, receive_words) = mpsc::channel();
    if let Some(err) = child.stderr.take() {
        lines(err, send_words);
    }
    let mut words: Vec<String> = Vec::new();
    let keep = |words: &mut Vec<String>| {
        words.extend(receive_words.try_iter());
        words.drain(..words.len().saturating_sub(KEPT));
    };
    let mut tick = Instant::now() + TICK;
    let mut out_of_time = false;
    loop {
        let now = Instant::now();
        if now >= deadline {
            out_of_time = true;
            break;
        }
        match receive.recv_timeout(deadline.min(tick).min(now + LOOK).saturating_duration_since(now)) {
            Ok(line) => hear(Heard::Line(&line)),
            // Its output ends when it does, unless it closed it before.
            Err(RecvTimeoutError::Disconnected) => break,
            // Or it ended and left a process of its own behind, which holds the output open.
            Err(RecvTimeoutError::Timeout) if matches!(child.try_wait(), Ok(Some(_))) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if Instant::now() >= tick {
            hear(Heard::Tick);
            keep(&mut words);
            tick = Instant::now() + TICK;
        }
    }
    let code = end(&mut child, out_of_time, deadline).map_err(|e| format!("{name} could not be waited for: {e}"))?;
    // What it said before it was killed counts.
    while let Ok(line) = receive.recv_timeout(Duration::from_millis(200)) {
        hear(Heard::Line(&line));
    }
    thread::sleep(Duration::from_millis(20));
    keep(&mut words);
    Ok(Ended { code, out_of_time, words: words.join("\n") })
}

/// Sends lines until there are no more.
fn lines(from: impl Read + Send + 'static, to: mpsc::Sender<String>) {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        // A line that is no UTF-8 ends nothing.
        while matches!(from.read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if to.send(text).is_err() {
                break;
            }
        }
    });
}

fn end(child: &mut Child, kill: bool, deadline: Instant) -> std::io::Result<Option<i32>> {
    if !kill {
        // Its output is closed, so this is not long; but it has no more time than it had.
        let patience = deadline.max(Instant::now() + Duration::from_secs(5));
        while Instant::now() < patience {
            if let Some(status) = child.try_wait()? {
                return Ok(status.code());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    child.kill()?;
    child.wait().map(|status| status.code())
}

/// The output of a short command: its lines, or why there are none.
pub fn lines_of(command: &mut Command, patience: Duration) -> Result<Vec<String>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut said = Vec::new();
    let ended = listen(command, Instant::now() + patience, |heard| {
        if let Heard::Line(line) = heard {
            said.push(line.to_owned());
        }
    })?;
    match ended {
        Ended { out_of_time: true, .. } => Err(format!("{name} did not answer in {} s", patience.as_secs())),
        ended if ended.well() => Ok(said),
        // Some programs complain on standard output.
        ended => Err(format!("{name} failed: {}{}", said.join(" "), ended.words)),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: f64) -> (Vec<String>, Ended) {
        let mut said = Vec::new();
        let deadline = Instant::now() + Duration::from_secs_f64(seconds);
        let ended = listen(Command::new("/bin/sh").args(["-c", script]), deadline, |heard| {
            if let Heard::Line(line) = heard {
                said.push(line.to_owned());
            }
        });
        (said, ended.unwrap())
    }

    #[test]
    fn lines_and_the_way_it_ended_come_through() {
        let (said, ended) = shell("echo one; echo two; echo why >&2; exit 3", 20.0);
        assert_eq!(said, ["one", "two"]);
        assert!(ended.code == Some(3) && !ended.out_of_time && !ended.well());
        assert_eq!(ended.words, "why");
    }

    #[test]
    fn what_takes_too_long_is_killed_and_what_it_said_stays() {
        let start = Instant::now();
        let (said, ended) = shell("echo before; exec sleep 60", 0.3);
        assert!(start.elapsed() < Duration::from_secs(20));
        assert_eq!(said, ["before"]);
        assert!(ended.out_of_time && ended.code.is_none() && !ended.well());
    }

    #[test]
    fn what_it_leaves_behind_is_not_waited_for() {
        let start = Instant::now();
        let (said, ended) = shell("echo it; sleep 30 &", 25.0);
        assert!(ended.well() && said == ["it"], "{ended:?}");
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let error = lines_of(&mut Command::new("no-such-program"), Duration::from_secs(1)).unwrap_err();
        assert!(error.starts_with("no-such-program could not be started"), "{error}");
        let error = lines_of(Command::new("/bin/sh").args(["-c", "echo bad; exit 1"]), Duration::from_secs(9));
        assert_eq!(error.unwrap_err(), "/bin/sh failed: bad");
    }
}
