//! How a wait for another process passes the time.

use std::time::Duration;

/// How long a wait looks again and again before it sleeps between one look and the next.
pub(crate) const SPIN: Duration = Duration::from_millis(2);
/// A wait sleeps for a hundredth of the time that it has waited, and for this at most.
const SLEEP: Duration = Duration::from_millis(1);

/// Passes the time until the next look. A short wait costs no latency, a long one next to nothing of a core.
pub(crate) fn pause(waited: Duration) {
    if waited > SPIN {
        std::thread::sleep((waited / 100).min(SLEEP));
    } else {
        std::hint::spin_loop();
    }
}
