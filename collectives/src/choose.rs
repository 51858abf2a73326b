//! The algorithm of an exchange, chosen by the times of the link and of the codec.

use std::time::Instant;

use gradwire::{Collective, CollectiveError, Compressor, Device, Error, Recipe};
use gradwire_planner::{Algorithm, Choice, CodecCost, Curve, Line, Network};

use crate::ping::{GroupPings, Ping, ping_group};

/// Bytes of the messages that the link is measured by, and how often each goes.
const SIZES: [usize; 4] = [1 << 8, 1 << 12, 1 << 15, 1 << 17];
const REPETITIONS: usize = 5;
/// How often the link is measured until a line fits.
const ATTEMPTS: usize = 3;
/// Steps by which the codec is measured, after two that do not count.
const STEPS: usize = 5;
/// The algorithms of the engines: a gather is always among them.
const ENGINE: [Algorithm; 3] = [Algorithm::Direct, Algorithm::TwoPhase, Algorithm::MergeTree];

/// How the gradients of tensors with these shapes go over this group fastest with this recipe: by a gather, in two
/// phases or by a tree, or not compressed at all. Every rank calls this, and gets the same [`Choice`], whose
/// [`recipe`](Choice::recipe) is for [`Compressor::new`].
///
/// Messages between ranks and gathers of all ranks are measured ([`ping_group`]), and a link is fitted to them: a
/// message's start, the time between messages that a rank sends at once, and the time per byte with all ranks on the
/// network. Rank 0 measures the codec:
/// exchanges with itself, and with as many copies of its own payload as there are ranks. It chooses by the costs of the
/// planner ([`Choice::new`]) and tells the others, since each would have measured something else. Recipe and margin are
/// rank 0's.
///
/// - **Without a codec**: where a codec does not save the share `least_margin` of the time, such as 0.05, the recipe is
///   `none`. Computation during the exchange is unknown here: the planner's `Question` takes it into account, with a
///   profile.
/// - **A tree keeps less**: `gtopk` sends as many entries in all as one rank selects. The residual keeps the others.
/// - **Gradients in a device's memory** are gathered or summed ([`Compressor::resident`]): a recipe for them is chosen
///   by hand.
///
/// # Errors
///
/// [`ChooseError::Refused`] on every rank, where rank 0 cannot choose: a recipe that there is not, or that names its
/// algorithm by hand; shapes that its codec refuses; a device that fails; messages whose times no line fits. The group
/// can be used again. [`ChooseError::Collective`] where the group fails; [`ChooseError::Answer`] where rank 0 did not
/// call this.
///
/// # Example
///
/// ```
/// use gradwire::{Compressor, Device};
/// use gradwire_collectives::{Threads, choose};
///
/// let shapes = [[64, 128], [128, 64]];
/// let recipes = std::thread::scope(|scope| {
///     let of_rank = |mut group: Threads| {
///         scope.spawn(move || {
///             let device = Device::cpu();
///             let choice = choose(&device, &mut group, "topk:0.01+ef", &shapes, 0.05).map_err(|error| error.to_string())?;
///             let mut compressor = Compressor::new(choice.recipe.as_str(), shapes, 42).map_err(|error| error.to_string())?;
///             let mut gradient = vec![0.5; compressor.elements()];
///             compressor.exchange(&device, &mut group, &mut gradient).map_err(|error| error.to_string())?;
///             Ok::<_, String>(choice.recipe)
///         })
///     };
///     let threads: Vec<_> = Threads::group(2).expect("ranks").into_iter().map(of_rank).collect();
///     threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(recipes[0], recipes[1]);
/// # Ok::<(), String>(())
/// ```
pub fn choose<C: Collective + ?Sized>(
    device: &Device,
    group: &mut C,
    recipe: &str,
    shapes: &[impl AsRef<[u64]>],
    least_margin: f64,
) -> Result<Choice, ChooseError> {
    let (rank, ranks) = (group.rank(), group.ranks());
    // What fails here is told below, where the others wait for it.
    let measured = (rank == 0).then(|| measure(device, recipe, shapes, ranks));
    for attempt in 1..=ATTEMPTS {
        let pings = if ranks > 1 { Some(ping_group(group, &SIZES, REPETITIONS)?) } else { None };
        let mut answer = match &measured {
            Some(Ok(measured)) => measured.answer(pings.as_ref(), ranks, least_margin, attempt == ATTEMPTS).to_bytes(),
            Some(Err(reason)) => Answer::Refused(reason.clone()).to_bytes(),
            None => Vec::new(),
        };
        group.broadcast(0, &mut answer)?;
        match Answer::from_bytes(&answer)? {
            Answer::Choice(text) => {
                return Choice::from_json(&text).map_err(|error| ChooseError::Answer { reason: error.to_string() });
            }
            Answer::Refused(reason) => return Err(ChooseError::Refused { reason }),
            Answer::Again => {}
        }
    }
    Err(ChooseError::Answer { reason: "it asked for one more measurement than there are".to_owned() })
}

/// Why no recipe was chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChooseError {
    /// The group failed, and cannot be used any further.
    #[error("no recipe was chosen: {0}")]
    Collective(#[from] CollectiveError),
    /// Rank 0 could not choose. Every rank gets this.
    #[error("rank 0 chose no recipe: {reason}")]
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// Rank 0 sent something else.
    #[error("rank 0 sent no choice: {reason}; let every rank run the same release, and call choose")]
    Answer {
        /// The fault.
        reason: String,
    },
}

/// What rank 0 tells the others.
enum Answer {
    /// As JSON.
    Choice(String),
    /// No line fits.
    Again,
    Refused(String),
}

impl Answer {
    fn to_bytes(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Self::Choice(text) => (b'c', text.as_str()),
            Self::Again => (b'a', ""),
            Self::Refused(reason) => (b'r', reason.as_str()),
        };
        [&[kind], text.as_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, ChooseError> {
        let answer = |reason: &str| ChooseError::Answer { reason: reason.to_owned() };
        let (kind, text) = bytes.split_first().ok_or_else(|| answer("its answer is empty"))?;
        let text = std::str::from_utf8(text).map_err(|_| answer("its answer is no text"))?;
        match kind {
            b'c' => Ok(Self::Choice(text.to_owned())),
            b'a' => Ok(Self::Again),
            b'r' => Ok(Self::Refused(text.to_owned())),
            _ => Err(answer("its answer is of no kind that there is")),
        }
    }
}

/// What rank 0 has measured by itself.
struct Measured {
    elements: u64,
    /// None if the recipe compresses nothing.
    codec: Option<CodecCost>,
}

impl Measured {
    fn answer(&self, pings: Option<&GroupPings>, ranks: u32, least_margin: f64, last: bool) -> Answer {
        let medians = |pings: &[Ping]| -> Vec<(f64, f64)> {
            pings.iter().map(|ping| (ping.bytes as f64, ping.median())).collect()
        };
        let network = match pings {
            // A rank alone has no link, and sends nothing over this one.
            None => Network::new(1.0, 1.0),
            Some(GroupPings { messages, gathers }) => {
                Network::fit(&medians(messages)).and_then(|(link, _)| link.with_gathers(ranks, &medians(gathers)))
            }
        };
        let network = match network {
            Ok(network) => network,
            Err(_) if !last => return Answer::Again,
            Err(error) => {
                let remedy = "let the machines do nothing else, or name a recipe";
                return Answer::Refused(format!("no link fits the times of its messages: {error}; {remedy}"));
            }
        };
        let choice = Choice::new(&network, ranks, self.elements, self.codec.as_slice(), &ENGINE, least_margin);
        match choice.and_then(|choice| choice.to_json()) {
            Ok(text) => Answer::Choice(text),
            Err(error) => Answer::Refused(error.to_string()),
        }
    }
}

fn measure(device: &Device, text: &str, shapes: &[impl AsRef<[u64]>], ranks: u32) -> Result<Measured, String> {
    let told = |error: Error| format!("{text}: {error}");
    let recipe: Recipe = text.parse().map_err(told)?;
    if recipe.algorithm() != gradwire::Algorithm::Gather {
        return Err(format!("{text}: it names its algorithm by hand; leave out gtopk and twophase"));
    }
    let compressor = || Compressor::new(text, shapes, 0).map_err(told);
    let elements = compressor()?.elements() as u64;
    if recipe.is_none() || elements == 0 {
        return Ok(Measured { elements, codec: None });
    }
    let name = recipe.to_string();
    let sums = recipe.is_linear();
    let (alone, bytes, rounds) = steps(device, compressor()?, 1).map_err(told)?;
    let decode = match sums || ranks == 1 {
        true => 0.0,
        false => {
            let (all, ..) = steps(device, compressor()?, ranks).map_err(told)?;
            ((all - alone) / f64::from(ranks - 1)).clamp(0.0, alone)
        }
    };
    let per_element = |seconds: f64| Curve::Line(Line::new(0.0, seconds / elements as f64));
    let admits = |stage: &str| !sums && format!("{name}{stage}").parse::<Recipe>().is_ok();
    Ok(Measured {
        elements,
        codec: Some(CodecCost {
            encode: per_element(alone - decode),
            decode: per_element(decode),
            bytes_per_element: bytes as f64 / elements as f64,
            sums,
            two_phase: admits("+twophase"),
            selects: admits("+gtopk") || admits("+ef+gtopk"),
            rounds: if sums { rounds.max(1) } else { 1 },
            name,
            ..CodecCost::dense()
        }),
    })
}

/// Seconds of a step, the median of some, in which the payload comes back from `ranks` ranks; the bytes that were sent,
/// and the number of sums.
fn steps(device: &Device, mut compressor: Compressor, ranks: u32) -> Result<(f64, u64, u32), Error> {
    let values = |at: usize| ((at * 7919) % 1009) as f32 - 504.0;
    let given: Vec<f32> = (0..compressor.elements()).map(values).collect();
    let (mut gradient, mut seconds, mut group) = (given.clone(), Vec::with_capacity(STEPS), Echo { ranks, sums: 0 });
    for step in 0..STEPS + 2 {
        gradient.copy_from_slice(&given);
        group.sums = 0;
        let began = Instant::now();
        compressor.exchange(device, &mut group, &mut gradient)?;
        if step > 1 {
            seconds.push(began.elapsed().as_secs_f64());
        }
    }
    seconds.sort_by(f64::total_cmp);
    Ok((seconds[STEPS / 2], compressor.last_bytes(), group.sums))
}

/// A group in which every rank has what this one has.
struct Echo {
    ranks: u32,
    /// Sums so far.
    sums: u32,
}

impl Collective for Echo {
    fn rank(&self) -> u32 {
        0
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        *all = vec![mine.to_vec(); self.ranks as usize];
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        let mine = to.first().ok_or(CollectiveError::Parts { got: 0, ranks: self.ranks })?;
        *from = vec![mine.to_vec(); self.ranks as usize];
        Ok(())
    }

    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        self.sums += 1;
        Ok(())
    }

    fn exchange(&mut self, _: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        *theirs = mine.to_vec();
        Ok(())
    }

    fn broadcast(&mut self, _: u32, _: &mut Vec<u8>) -> Result<(), CollectiveError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gradwire_planner::{Choice, CodecCost, Curve, Line};

    use super::{Answer, Measured, SIZES, measure};
    use crate::ping::{GroupPings, Ping};

    /// The choice for a codec that takes no time, messages of 100 us and 2 MB/s, and gathers whose messages are sent at
    /// once.
    fn chosen(ranks: u32, recipe: &str) -> String {
        chosen_over(100e-6, ranks, recipe).recipe
    }

    fn chosen_over(latency: f64, ranks: u32, recipe: &str) -> Choice {
        // 32768 elements, of which none are small.
        let measured = measure(&gradwire::Device::cpu(), recipe, &[[128, 128], [64, 256]], ranks).expect("a recipe");
        let none = Curve::Line(Line::new(0.0, 0.0));
        let codec = measured.codec.map(|codec| CodecCost { encode: none, decode: none, ..codec });
        let messages = SIZES.map(|bytes| Ping { bytes, seconds: vec![latency + bytes as f64 / 2e6] });
        let others = ranks as usize - 1;
        let gather = |bytes: usize| latency + (bytes * others) as f64 / 2e6;
        let gathers = SIZES.map(|bytes| bytes / others).map(|bytes| Ping { bytes, seconds: vec![gather(bytes)] });
        let pings = GroupPings { messages: messages.to_vec(), gathers: gathers.to_vec() };
        match (Measured { codec, ..measured }).answer(Some(&pings), ranks, 0.05, true) {
            Answer::Choice(text) => Choice::from_json(&text).expect("a choice"),
            Answer::Refused(reason) => panic!("{reason}"),
            Answer::Again => panic!("no link fits"),
        }
    }

    /// 32 ranks 50 ms apart: the engines post a gather's 31 messages at once, and wait once.
    #[test]
    fn a_gather_waits_once_for_all_ranks() {
        let choice = chosen_over(50e-3, 32, "qsgd:bits=4,bucket=64+ef");
        let of = |recipe: &str| choice.ways.iter().find(|way| way.recipe == recipe).expect("a way").seconds;
        // 31 payloads of 18 kB at 2 MB/s; the sum is two phases of 128 kB.
        let gathered = of("qsgd:bits=4,bucket=64+ef");
        assert!((0.050 + 0.28..0.050 + 0.31).contains(&gathered), "{gathered}");
        // PowerSGD has two sums, each with two phases.
        let factors = chosen_over(50e-3, 32, "powersgd:rank=2").seconds;
        assert!((0.200..0.210).contains(&factors), "{factors}");
        let dense = of("none");
        assert!((0.100 + 0.125..0.100 + 0.130).contains(&dense), "{dense}");
    }

    #[test]
    fn the_fastest_way_goes_by_ranks_and_bytes() {
        for (ranks, recipe, wanted) in [
            // 1.5 payloads against 3; the sum is 1.5 gradients.
            (4, "qsgd:bits=4,bucket=64+ef", "qsgd:bits=4,bucket=64+ef+twophase"),
            // A payload either way, and fewer messages.
            (2, "qsgd:bits=4,bucket=64+ef", "qsgd:bits=4,bucket=64+ef"),
            // Three tenths of the entries with their indices, from all seven others or in six messages: more than the
            // sum.
            (8, "topk:0.3+ef", "none"),
            (2, "topk:0.3+ef", "topk:0.3+ef"),
            // 29 payloads against 10.
            (30, "topk:0.05+ef", "topk:0.05+ef+gtopk"),
            // Factors are summed.
            (4, "powersgd:rank=2", "powersgd:rank=2"),
            (4, "none", "none"),
        ] {
            assert_eq!(chosen(ranks, recipe), wanted, "{ranks} ranks");
        }
    }
}
