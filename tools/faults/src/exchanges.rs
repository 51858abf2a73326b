//! The exchange of a compressor, with the steps before it and the state after it.

use gradwire::{Collective, CollectiveError, Compressor, Error, Policy, Tensor};

use super::allocator;
use super::control::Control;
use super::fixtures::{Answer, Failed, Opened, bytes, ready, values};

/// The second rank of two, of which the first gives what this one gives.
#[derive(Default)]
struct Twin {
    /// What this rank gave last.
    given: Vec<u8>,
}

impl Collective for Twin {
    fn rank(&self) -> u32 {
        1
    }

    fn ranks(&self) -> u32 {
        2
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        allocator::paused(|| *all = vec![mine.to_vec(); 2]);
        Ok(())
    }

    fn all_to_all(&mut self, to: &[&[u8]], from: &mut Vec<Vec<u8>>) -> Result<(), CollectiveError> {
        let [_, mine] = to else { return Err(CollectiveError::Parts { got: to.len(), ranks: 2 }) };
        allocator::paused(|| *from = vec![mine.to_vec(); 2]);
        Ok(())
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        values.iter_mut().for_each(|value| *value += *value);
        Ok(())
    }

    /// The root of a tree hands back what it was given.
    fn exchange(&mut self, _: u32, mine: &[u8], theirs: &mut Vec<u8>) -> Result<(), CollectiveError> {
        allocator::paused(|| {
            if !mine.is_empty() {
                self.given = mine.to_vec();
            }
            theirs.clone_from(&self.given);
        });
        Ok(())
    }

    fn broadcast(&mut self, _: u32, _: &mut Vec<u8>) -> Result<(), CollectiveError> {
        Ok(())
    }
}

/// For two matrices and a vector, which may have a recipe of its own. For two phases it is one matrix, so that each rank
/// owns half of it.
fn compressor(recipe: &str) -> Result<Compressor, Error> {
    if recipe.contains("twophase") {
        return Compressor::new(recipe, [[960, 480]], 5);
    }
    let shapes = [vec![960, 480], vec![640, 96], vec![70_000]];
    let Some((recipe, of_vectors)) = recipe.split_once(", vectors ") else {
        return Compressor::new(recipe, shapes, 5);
    };
    let tensors = shapes.map(|shape| Tensor::new("", shape));
    Compressor::with_policy(&Policy::new(recipe)?.vectors(of_vectors)?, &tensors, 5)
}

/// Makes a compressor, and takes two steps.
pub(super) fn exchange(opened: &Opened, control: &Control, recipe: &str) -> Answer {
    control.arm();
    let answer = two_steps(opened, control, recipe);
    control.over();
    answer
}

fn two_steps(opened: &Opened, control: &Control, recipe: &str) -> Answer {
    let mut compressor = compressor(recipe).map_err(|error| Failed { error, changed: None })?;
    let n = compressor.elements();
    let mut answer = Vec::new();
    for step in [1, 2] {
        let (before, state) = allocator::paused(|| (values(n, step), compressor.state()));
        let state = ready(state)?;
        let mut gradient = allocator::paused(|| before.clone());
        let result = compressor.exchange(&opened.device, &mut Twin::default(), &mut gradient);
        if let Err(error) = result {
            control.over();
            let is_whole = compressor.state().is_ok_and(|now| now == state);
            let changed = if !is_whole {
                Some("the state")
            } else {
                (bytes(&gradient) != bytes(&before)).then_some("the gradient")
            };
            return Err(Failed { error, changed });
        }
        allocator::paused(|| answer.extend(bytes(&gradient)));
    }
    control.over();
    answer.extend(ready(compressor.state())?);
    Ok(answer)
}

/// Saves a state, or takes one up.
pub(super) fn saved(opened: &Opened, control: &Control, restores: bool) -> Answer {
    let recipe = "topk:0.1+momentum=0.5";
    let mut compressor = ready(compressor(recipe))?;
    let n = compressor.elements();
    ready(compressor.exchange(&opened.device, &mut Twin::default(), &mut values(n, 1)))?;
    let state = ready(compressor.state())?;
    if !restores {
        return control.call(|| compressor.state()).map_err(|error| Failed { error, changed: None });
    }
    ready(compressor.exchange(&opened.device, &mut Twin::default(), &mut values(n, 2)))?;
    let before = ready(compressor.state())?;
    let result = control.call(|| compressor.restore(&[&state, &state], 0, 2));
    let now = ready(compressor.state())?;
    match result {
        Ok(()) => Ok(now),
        Err(error) => Err(Failed { error, changed: (now != before).then_some("the state") }),
    }
}
