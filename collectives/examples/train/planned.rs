//! Exchanges by a plan: a message after the other, each by its own recipe.

use std::path::Path;

use gradwire::{Compressor, Device, Policy, Tensor};
use gradwire_collectives::Collective;
use gradwire_planner::Message;

use super::error::TrainError;
use super::network::Network;

/// What becomes of each step's gradient: one compressor for each message.
pub(crate) struct Exchanges {
    parts: Vec<Part>,
}

struct Part {
    /// Where its tensors begin and end in the whole gradient; none where that is all of it.
    ranges: Option<Vec<std::ops::Range<usize>>>,
    compressor: Compressor,
    gradient: Vec<f32>,
}

/// The messages of a plan that `cargo xtask plan --write` has written.
pub(crate) fn read(file: &Path) -> Result<Vec<Message>, TrainError> {
    let refuse = |reason: String| TrainError::Plan { path: file.to_owned(), reason };
    let text = std::fs::read_to_string(file).map_err(|error| refuse(error.to_string()))?;
    Message::from_plan(&text).map_err(|error| refuse(error.to_string()))
}

impl Exchanges {
    /// All tensors in one message, by one codec.
    pub(crate) fn whole(codec: &str, network: &Network, seed: u64) -> Result<Self, TrainError> {
        let compressor = Compressor::new(codec, &network.shapes(), seed)?;
        Ok(Self { parts: vec![Part { ranges: None, compressor, gradient: Vec::new() }] })
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
        let mut parts = Vec::with_capacity(messages.len());
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
            let compressor = Compressor::with_policy(&policy, &own, run)?;
            parts.push(Part { ranges: Some(ranges), compressor, gradient: Vec::new() });
        }
        match missing.is_empty() {
            true => Ok(Self { parts }),
            false => Err(refuse(format!("it lacks {}", missing.join(", ")))),
        }
    }

    /// The gradient of this rank becomes the mean over all ranks. Gives the bytes that were handed over.
    pub(crate) fn exchange(
        &mut self,
        device: &Device,
        group: &mut dyn Collective,
        gradient: &mut [f32],
    ) -> Result<u64, TrainError> {
        let mut bytes = 0;
        for Part { ranges, compressor, gradient: own } in &mut self.parts {
            match ranges {
                None => compressor.exchange(device, group, gradient)?,
                Some(ranges) => {
                    own.clear();
                    ranges.iter().for_each(|range| own.extend_from_slice(&gradient[range.clone()]));
                    compressor.exchange(device, group, own)?;
                    let mut rest = &own[..];
                    for range in ranges {
                        let (mean, behind) = rest.split_at(range.len());
                        gradient[range.clone()].copy_from_slice(mean);
                        rest = behind;
                    }
                }
            }
            bytes += compressor.last_bytes();
        }
        Ok(bytes)
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
        let exchange = |mut exchanges: Exchanges| {
            let mut group = gradwire_collectives::Threads::group(1).unwrap().remove(0);
            let mut gradient = mine.clone();
            let bytes = exchanges.exchange(&Device::cpu(), &mut group, &mut gradient).unwrap();
            (gradient, bytes)
        };
        let (first, second) = ([("1.bias", 3), ("0.weight", 24)], [("1.weight", 12), ("0.bias", 4)]);
        let planned =
            |recipe| Exchanges::planned(&messages(&[(&first, "none"), (&second, recipe)]), &network(), 1).unwrap();
        assert_eq!(exchange(planned("none")).0, mine);
        let (selected, bytes) = exchange(planned("topk:k=1"));
        // Of the bias the 28th element is the largest, of the weights the 40th.
        let kept = |at: usize| !(25..=40).contains(&at) || at == 28 || at == 40;
        let wanted: Vec<f32> = (1..=43).map(|at| if kept(at) { at as f32 } else { 0.0 }).collect();
        assert_eq!(selected, wanted);
        assert!(bytes > 4 * 27, "{bytes}");
    }

    #[test]
    fn plans_of_other_networks_are_refused() {
        let whole = [("0.weight", 24), ("0.bias", 4), ("1.weight", 12), ("1.bias", 3)];
        let refused = |tensors: &[(&str, u64)]| {
            Exchanges::planned(&messages(&[(tensors, "none")]), &network(), 1).err().map(|error| error.to_string())
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
