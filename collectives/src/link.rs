//! A link that is as slow as wanted.

use std::time::{Duration, Instant};

/// The link of each rank of [`Threads::throttled`](crate::Threads::throttled): what a rank sends leaves at this rate,
/// one message after another, and arrives this much later.
///
/// It is a token bucket without depth: nothing leaves faster, however long the rank was silent before. Only sending is
/// throttled. So a rank to which several send at once receives from all of them, as from a switch with a faster port.
///
/// ```
/// use std::time::Duration;
/// use gradwire_collectives::{Link, LinkError};
///
/// let link = Link::new(125_000_000, Duration::from_micros(30))?; // 1 Gb/s
/// assert_eq!(link.alone(1_250_000), Duration::from_micros(10_030));
/// assert!(matches!(Link::new(999, Duration::ZERO), Err(LinkError::Rate { .. })));
/// # Ok::<(), LinkError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    bytes_per_second: u64,
    latency: Duration,
}

/// Why a link is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A rate that is too low to wait for.
    #[error("a link of {got} bytes per second: it has {} at least", Link::LEAST_RATE)]
    Rate {
        /// The rate asked for, in bytes per second.
        got: u64,
    },
    /// A latency that is too long to wait for.
    #[error("a link of {got:?} latency: it has {:?} at most", Link::MOST_LATENCY)]
    Latency {
        /// The latency asked for.
        got: Duration,
    },
}

impl Link {
    /// The lowest rate, in bytes per second.
    pub const LEAST_RATE: u64 = 1000;
    /// The longest latency.
    pub const MOST_LATENCY: Duration = Duration::from_secs(60);

    /// A link of this rate and latency.
    ///
    /// # Errors
    ///
    /// [`LinkError`] for a rate below [`Link::LEAST_RATE`] or a latency above [`Link::MOST_LATENCY`].
    pub fn new(bytes_per_second: u64, latency: Duration) -> Result<Self, LinkError> {
        if bytes_per_second < Self::LEAST_RATE {
            return Err(LinkError::Rate { got: bytes_per_second });
        }
        if latency > Self::MOST_LATENCY {
            return Err(LinkError::Latency { got: latency });
        }
        Ok(Self { bytes_per_second, latency })
    }

    /// The time from the beginning of a message's sending until it is there, where nothing else is sent.
    pub fn alone(&self, bytes: u64) -> Duration {
        self.sending(bytes) + self.latency
    }

    /// The time for which a message of `bytes` keeps the link busy.
    fn sending(&self, bytes: u64) -> Duration {
        let (seconds, rest) = (bytes / self.bytes_per_second, bytes % self.bytes_per_second);
        // The rest is below the rate, so that the quotient is below 10^9.
        let nanoseconds = u128::from(rest) * 1_000_000_000 / u128::from(self.bytes_per_second);
        Duration::new(seconds, nanoseconds as u32)
    }
}

/// The link of one rank, and until when it is busy.
#[derive(Debug)]
pub(crate) struct Throttle {
    link: Link,
    free: Option<Instant>,
}

impl Throttle {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, free: None }
    }

    /// When a message arrives that is given to the link now.
    pub(crate) fn arrival(&mut self, bytes: usize, now: Instant) -> Instant {
        let begins = self.free.map_or(now, |free| free.max(now));
        let free = begins + self.link.sending(bytes as u64);
        self.free = Some(free);
        free + self.link.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_leave_one_behind_the_other_and_silence_saves_nothing() {
        let ms = Duration::from_millis;
        let link = Link::new(1_000_000, ms(5)).unwrap();
        let mut throttle = Throttle::new(link);
        let start = Instant::now();
        let mut arrives = |bytes, at| throttle.arrival(bytes, start + at) - start;
        assert_eq!(arrives(2000, ms(0)), ms(7));
        // The link is busy for another millisecond.
        assert_eq!(arrives(3000, ms(1)), ms(10));
        assert_eq!(arrives(0, ms(1)), ms(10));
        // It was silent since millisecond 5.
        assert_eq!(arrives(1000, ms(100)), ms(106));
    }

    #[test]
    fn rates_divide_exactly() {
        let link = |rate| Link::new(rate, Duration::ZERO).unwrap();
        assert_eq!(link(3000).alone(1000), Duration::from_nanos(333_333_333));
        assert_eq!(link(3000).alone(10_000), Duration::new(3, 333_333_333));
        assert_eq!(link(u64::MAX).alone(u64::MAX - 1), Duration::from_nanos(999_999_999));
        assert_eq!(link(1_250_000_000).alone(5_000_000_000), Duration::from_secs(4));
    }

    #[test]
    fn links_that_cannot_be_waited_for_are_refused() {
        let long = Link::MOST_LATENCY + Duration::from_nanos(1);
        assert_eq!(Link::new(999, Duration::ZERO), Err(LinkError::Rate { got: 999 }));
        assert_eq!(Link::new(1000, long), Err(LinkError::Latency { got: long }));
        assert!(Link::new(999, Duration::ZERO).unwrap_err().to_string().contains("1000 at least"));
        assert!(Link::new(1000, Link::MOST_LATENCY).is_ok());
    }
}
