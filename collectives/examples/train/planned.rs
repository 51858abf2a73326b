//! Exchanges by a plan: each message by its own recipe, one after the other, or as backpropagation has them.

use std::ops::Range;
use std::path::Path;

use gradwire::{Compressor, Device, Policy, Tensor};
use gradwire_collectives::Together;
use gradwire_planner::Message;

use super::error::TrainError;
use super::gpu::{By, Group, OnGpu};
use super::network::Network;

/// What becomes of each step's gradient: one compressor for each message.
pub(crate) struct Messages {
    parts: Vec<Part>,
    compressors: Vec<Compressor>,
}

struct Part {
    /// Where its tensors begin and end in the whole gradient; none if that is all of it.
    ranges: Option<Vec<Range<usize>>>,
    gradient: Vec<f32>,
    started: bool,
}

/// The messages of a plan that `cargo xtask plan --write` has written.
pub(crate) fn read(file: &Path) -> Result<Vec<Message>, TrainError> {
    let refuse = |reason: String| TrainError::Plan { path: file.to_owned(), reason };
    let text = std::fs::read_to_string(file).map_err(|error| refuse(error.to_string()))?;
    Message::from_plan(&text).map_err(|error| refuse(error.to_string()))
}

impl Messages {
    /// All tensors in one message, by one codec.
    pub(crate) fn whole(codec: &str, network: &Network, seed: u64) -> Result<Self, TrainError> {
        let compressor = Compressor::new(codec, &network.shapes(), seed)?;
        let part = Part { ranges: None, gradient: Vec::new(), started: false };
        Ok(Self { parts: vec![part], compressors: vec![compressor] })
    }

    /// The messages of a plan, whose tensors are exactly the network's: `0.weight`, `0.bias`, `1.weight` and so on.
    ///
    /// The plan says what is compressed, so that small tensors are no exception.
    pub(crate) fn planned(messages: &[Message], network: &Network, seed: u64) -> Result<Self, TrainError> {
        let refuse = |reason: String| TrainError::Messages { reason };
        let mut start = 0;
        let mut tensors: Vec<(Tensor, usize)> = Vec::new();
        for (at, shape) in network.shapes().into_iter().enumerate() {
            let tensor = Tensor::new(format!("{}.{}", at / 2, ["weight", "bias"][at % 2]), shape);
            let elements = tensor.elements() as usize;
            tensors.push((tensor, start));
            start += elements;
        }
        let mut missing: Vec<&str> = tensors.iter().map(|(tensor, _)| tensor.name.as_str()).collect();
        let (mut parts, mut compressors) = (Vec::with_capacity(messages.len()), Vec::with_capacity(messages.len()));
        // Messages draw differently, and alike on every rank.
        for (number, message) in (0..).zip(messages) {
            let run = seed.wrapping_add(number << 32);
            let (mut own, mut ranges) = (Vec::new(), Vec::new());
            for sent in &message.tensors {
                let found = tensors.iter().find(|(tensor, _)| tensor.name == sent.name);
                let Some((tensor, start)) = found else {
                    return Err(refuse(format!("it has {:?}, which the network has not", sent.name)));
                };
                if tensor.elements() != sent.elements {
                    let (name, found, wanted) = (&sent.name, sent.elements, tensor.elements());
                    return Err(refuse(format!("{name:?} has {found} elements, and {wanted} in the network")));
                }
                missing.retain(|name| *name != sent.name);
                own.push(tensor.clone());
                ranges.push(*start..start + sent.elements as usize);
            }
            let policy = Policy::new(message.recipe.as_str())?.small(0);
            compressors.push(Compressor::with_policy(&policy, &own, run)?);
            parts.push(Part { ranges: Some(ranges), gradient: Vec::new(), started: false });
        }
        match missing.is_empty() {
            true => Ok(Self { parts, compressors }),
            false => Err(refuse(format!("it lacks {}", missing.join(", ")))),
        }
    }
}

impl Messages {
    /// Takes up what the compressors of all ranks kept, as rank `rank` of `ranks` that there are now.
    pub(crate) fn restore(&mut self, states: &[Vec<Vec<u8>>], rank: u32, ranks: u32) -> Result<(), gradwire::Error> {
        for (number, compressor) in self.compressors.iter_mut().enumerate() {
            // A rank that lacks one counts for an empty state, which is refused.
            let of_ranks: Vec<&[u8]> =
                states.iter().map(|of_rank| of_rank.get(number).map_or(&[][..], |state| &state[..])).collect();
            compressor.restore(&of_ranks, rank, ranks)?;
        }
        Ok(())
    }
}

/// A group, and the state of each message's compressor.
type Lent<'g, G> = (&'g mut G, Vec<Vec<u8>>);

/// The messages of a group.
pub(crate) struct Exchanges<'d, G> {
    parts: Vec<Part>,
    how: How<'d, G>,
}

/// Who exchanges.
enum How<'d, G> {
    /// This thread, once all of the gradient is there.
    InTurn { device: &'d Device, group: G, compressors: Vec<Compressor> },
    /// This thread, in the memory of a GPU.
    OnGpu { device: &'d Device, group: G, messages: Vec<OnGpu> },
    /// Another thread, as soon as a message is there.
    Beside(Together<G>),
}

impl Part {
    /// Whether its tensors are in the part of the gradient that begins here.
    fn is_from(&self, start: usize) -> bool {
        self.ranges.as_ref().map_or(start == 0, |ranges| ranges.iter().all(|range| range.start >= start))
    }

    /// Takes its tensors out of a gradient.
    fn take(&mut self, gradient: &[f32]) {
        self.gradient.clear();
        match &self.ranges {
            None => self.gradient.extend_from_slice(gradient),
            Some(ranges) => ranges.iter().for_each(|range| self.gradient.extend_from_slice(&gradient[range.clone()])),
        }
    }

    /// Puts them back.
    fn put(&self, gradient: &mut [f32]) {
        let Some(ranges) = &self.ranges else { return gradient.copy_from_slice(&self.gradient) };
        let mut rest = &self.gradient[..];
        for range in ranges {
            let (mean, behind) = rest.split_at(range.len());
            gradient[range.clone()].copy_from_slice(mean);
            rest = behind;
        }
    }
}

impl<'d, G: Group> Exchanges<'d, G> {
    /// Exchanges in turn; with `overlap`, on a thread of their own while backpropagation goes on, and in the host's
    /// memory.
    pub(crate) fn new(messages: Messages, by: &'d By<'_>, mut group: G, overlap: bool) -> Result<Self, TrainError> {
        let Messages { parts, compressors } = messages;
        let how = match by {
            _ if overlap => How::Beside(Together::new(by.another()?, group, compressors)?),
            By::Device(device) => How::InTurn { device, group, compressors },
            By::Gpu(gpu) => {
                let of = |compressor| OnGpu::new(gpu, compressor, &mut group);
                let messages = compressors.into_iter().map(of).collect::<Result<_, _>>()?;
                How::OnGpu { device: by.device(), group, messages }
            }
        };
        Ok(Self { parts, how })
    }

    /// What becomes of a gradient where a GPU exchanges it: a line for each way that there is.
    pub(crate) fn told(&self) -> Vec<String> {
        let How::OnGpu { messages, .. } = &self.how else { return Vec::new() };
        let mut lines: Vec<String> = messages.iter().map(OnGpu::told).collect();
        lines.dedup();
        lines
    }

    /// The gradient is there from `start` on.
    pub(crate) fn ready(&mut self, start: usize, gradient: &[f32]) -> Result<(), TrainError> {
        let How::Beside(work) = &mut self.how else { return Ok(()) };
        for (number, part) in self.parts.iter_mut().enumerate().filter(|(_, part)| !part.started && part.is_from(start))
        {
            part.take(gradient);
            work.start(number, &part.gradient)?;
            part.started = true;
        }
        Ok(())
    }

    /// The gradient of this rank, all of which is there, becomes the mean over all ranks. Gives the bytes that were
    /// handed over.
    ///
    /// Where a message fails, no other has changed anything, and the gradient is as it was; but on a GPU, where each
    /// message stands alone.
    pub(crate) fn finish(&mut self, gradient: &mut [f32]) -> Result<u64, TrainError> {
        let Self { parts, how } = self;
        let bytes = match how {
            How::InTurn { device, group, compressors } => {
                if let ([compressor], [Part { ranges: None, .. }]) = (&mut compressors[..], &parts[..]) {
                    compressor.exchange(device, group, gradient)?;
                    return Ok(compressor.last_bytes());
                }
                parts.iter_mut().for_each(|part| part.take(gradient));
                let of_parts = parts.iter_mut().map(|part| &mut part.gradient[..]);
                Compressor::exchange_all(device, group, compressors.iter_mut().zip(of_parts))
                    .map_err(gradwire::Error::from)?;
                compressors.iter().map(Compressor::last_bytes).sum()
            }
            How::OnGpu { device, group, messages } => {
                if let ([message], [Part { ranges: None, .. }]) = (&mut messages[..], &parts[..]) {
                    return Ok(message.exchange(device, group, gradient)?);
                }
                let mut bytes = 0;
                for (message, part) in messages.iter_mut().zip(parts.iter_mut()) {
                    part.take(gradient);
                    bytes += message.exchange(device, group, &mut part.gradient)?;
                }
                bytes
            }
            How::Beside(work) => {
                // Backpropagation is over, whether this succeeds or not.
                parts.iter_mut().for_each(|part| part.started = false);
                work.finish(parts.iter_mut().map(|part| &mut part.gradient[..]))?;
                (0..parts.len()).filter_map(|number| work.compressor(number)).map(Compressor::last_bytes).sum()
            }
        };
        parts.iter().for_each(|part| part.put(gradient));
        Ok(bytes)
    }

    /// What the compressor of each message keeps, between steps.
    pub(crate) fn states(&mut self) -> Result<Vec<Vec<u8>>, TrainError> {
        let states: Result<_, gradwire::Error> = match &mut self.how {
            How::InTurn { compressors, .. } => compressors.iter().map(Compressor::state).collect(),
            How::OnGpu { group, messages, .. } => messages.iter_mut().map(|message| message.state(group)).collect(),
            How::Beside(work) => {
                (0..self.parts.len()).filter_map(|number| work.compressor(number)).map(Compressor::state).collect()
            }
        };
        Ok(states?)
    }

    /// What the compressors keep, and the group, between two steps. Where another thread exchanges there is no group to
    /// lend.
    pub(crate) fn lend(&mut self) -> Result<Option<Lent<'_, G>>, TrainError> {
        let states = self.states()?;
        Ok(match &mut self.how {
            How::InTurn { group, .. } | How::OnGpu { group, .. } => Some((group, states)),
            How::Beside(_) => None,
        })
    }

    /// The group, after the last step.
    pub(crate) fn close(self) -> Result<G, TrainError> {
        match self.how {
            How::InTurn { group, .. } | How::OnGpu { group, .. } => Ok(group),
            How::Beside(mut work) => Ok(work.close()?.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        Network::new(&[6, 4, 3], 1)
    }

    fn messages(groups: &[(&[(&str, u64)], &str)]) -> Vec<Message> {
        let sent = |&(name, elements): &(&str, u64)| format!(r#"{{"name": "{name}", "elements": {elements}}}"#);
        let message = |(tensors, recipe): &(&[(&str, u64)], &str)| {
            let tensors: Vec<String> = tensors.iter().map(sent).collect();
            format!(r#"{{"tensors": [{}], "recipe": "{recipe}"}}"#, tensors.join(","))
        };
        let all: Vec<String> = groups.iter().map(message).collect();
        Message::from_plan(&format!(r#"{{"messages": [{}]}}"#, all.join(","))).unwrap()
    }

    /// Tensors that do not lie side by side share a message. Without compression the mean is that of one message; a
    /// selection of one entry changes its own tensors alone.
    #[test]
    fn messages_exchange_their_own_tensors() {
        let mine: Vec<f32> = (1..=43).map(|at| at as f32).collect();
        let exchange = |messages: Messages, overlap| {
            let (device, group) = (Device::cpu(), gradwire_collectives::Threads::group(1).unwrap().remove(0));
            let by = By::Device(&device);
            let mut exchanges = Exchanges::new(messages, &by, group, overlap).unwrap();
            let mut gradient = mine.clone();
            // The last layer is there first, and then all.
            exchanges.ready(28, &mine).and_then(|()| exchanges.ready(0, &mine)).unwrap();
            let bytes = exchanges.finish(&mut gradient).unwrap();
            exchanges.close().unwrap();
            (gradient, bytes)
        };
        let (first, second) = ([("1.bias", 3), ("0.weight", 24)], [("1.weight", 12), ("0.bias", 4)]);
        let planned =
            |recipe| Messages::planned(&messages(&[(&first, "none"), (&second, recipe)]), &network(), 1).unwrap();
        assert_eq!(exchange(planned("none"), false).0, mine);
        assert_eq!(exchange(planned("none"), true).0, mine);
        let (selected, bytes) = exchange(planned("topk:k=1"), false);
        assert_eq!(exchange(planned("topk:k=1"), true), (selected.clone(), bytes));
        // Of the bias the 28th element is the largest, of the weights the 40th.
        let kept = |at: usize| !(25..=40).contains(&at) || at == 28 || at == 40;
        let wanted: Vec<f32> = (1..=43).map(|at| if kept(at) { at as f32 } else { 0.0 }).collect();
        assert_eq!(selected, wanted);
        assert!(bytes > 4 * 27, "{bytes}");
    }

    /// The second message refuses a NaN: the first has not changed anything either, and the next step is what it would
    /// have been.
    #[test]
    fn a_message_that_fails_leaves_all_as_it_was() {
        let (first, second) = ([("1.bias", 3), ("0.weight", 24)], [("1.weight", 12), ("0.bias", 4)]);
        let plan = messages(&[(&first, "topk:0.2+ef"), (&second, "qsgd:bits=4,bucket=32+ef+finite")]);
        let good: Vec<f32> = (1..=43).map(|at| at as f32).collect();
        let bad: Vec<f32> = good.iter().map(|value| if *value == 30.0 { f32::NAN } else { -value }).collect();
        let run = |refused: bool, overlap: bool| {
            let (device, group) = (Device::cpu(), gradwire_collectives::Threads::group(1).unwrap().remove(0));
            let (by, messages) = (By::Device(&device), Messages::planned(&plan, &network(), 1).unwrap());
            let mut exchanges = Exchanges::new(messages, &by, group, overlap).unwrap();
            let mut step = |gradient: &[f32]| {
                let mut mine = gradient.to_vec();
                exchanges.ready(0, gradient).unwrap();
                (exchanges.finish(&mut mine).map_err(|error| error.to_string()), mine)
            };
            if refused {
                let (done, mine) = step(&bad);
                assert!(done.unwrap_err().contains("not finite"));
                assert!(mine.iter().zip(&bad).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
            [step(&good).1, step(&good).1]
        };
        let right = run(false, false);
        for (refused, overlap) in [(true, false), (false, true), (true, true)] {
            assert_eq!(run(refused, overlap), right, "{refused}, {overlap}");
        }
    }

    #[test]
    fn plans_of_other_networks_are_refused() {
        let whole = [("0.weight", 24), ("0.bias", 4), ("1.weight", 12), ("1.bias", 3)];
        let refused = |tensors: &[(&str, u64)]| {
            Messages::planned(&messages(&[(tensors, "none")]), &network(), 1).err().map(|error| error.to_string())
        };
        assert_eq!(refused(&whole), None);
        for (tensors, wanted) in [
            (whole[..3].to_vec(), "it lacks 1.bias"),
            ([&whole[..], &[("2.bias", 1)]].concat(), "\"2.bias\", which the network has not"),
            ([&whole[1..], &[("0.weight", 25)]].concat(), "\"0.weight\" has 25 elements, and 24 in the network"),
        ] {
            let error = refused(&tensors).unwrap();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
