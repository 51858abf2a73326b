//! What goes wrong with one rank, and what the others get.

use std::time::{Duration, Instant};

use gradwire::{Collective, CollectiveError, Compressor, Device, Error};

use crate::Case;
use crate::work::{SHAPES, compressor, gradient};

/// The rank that does something else than the others.
const ODD: u32 = 1;

/// Makes a good step, and then one in which rank 1 goes wrong. What this rank got, if that is what it should be.
///
/// Gradient, residual and state have to be as before the step.
pub(crate) fn run(case: Case, group: &mut dyn Collective, deadline: Duration) -> Result<String, String> {
    let rank = group.rank();
    let told = |error: Error| format!("rank {rank}: {error}");
    let device = Device::cpu();
    let mut compressor = compressor("qsgd:bits=4,bucket=64+ef").map_err(told)?;
    let mut first = gradient(compressor.elements(), rank, 0);
    compressor.exchange(&device, group, &mut first).map_err(told)?;
    if rank == ODD {
        match case {
            Case::Late => std::thread::sleep(deadline.mul_f64(1.5)),
            // The caller drops the handle.
            Case::Left => return Ok("left".to_owned()),
            Case::Killed => std::process::abort(),
            Case::Mismatch => {
                let sum = group.all_reduce_sum(&mut [1.0; 7]);
                return expect(case, sum.map_err(Error::from));
            }
            Case::Agree | Case::Time => {}
        }
    }
    let before = compressor.state().map_err(told)?;
    let given = gradient(compressor.elements(), rank, 1);
    let mut second = given.clone();
    let start = Instant::now();
    let made = compressor.exchange(&device, group, &mut second);
    let took = start.elapsed();
    let found = expect(case, made)?;
    if compressor.state().map_err(told)? != before || second != given {
        return Err(format!("rank {rank}: a step that failed left its traces"));
    }
    if took > deadline.mul_f64(2.0) + Duration::from_secs(2) {
        return Err(format!("rank {rank}: the error took {took:?}"));
    }
    // The group is done for, and says so at once.
    let start = Instant::now();
    expect(case, compressor.exchange(&device, group, &mut second))?;
    expect(case, group.broadcast(0, &mut Vec::new()).map_err(Error::from))?;
    if start.elapsed() > Duration::from_secs(1) {
        return Err(format!("rank {rank}: an error that is known took {:?}", start.elapsed()));
    }
    let mut model = Compressor::new("qsgd:bits=4,bucket=64+ef", &SHAPES[..2], 0).map_err(told)?;
    let mut other = gradient(model.elements(), rank, 0);
    expect(case, model.exchange(&device, group, &mut other))?;
    Ok(found)
}

/// The error that a case has to give; its name.
fn expect(case: Case, made: Result<(), Error>) -> Result<String, String> {
    let right = |error: &CollectiveError| match (case, error) {
        (Case::Late, CollectiveError::Late { rank, .. }) => *rank == ODD,
        (Case::Left | Case::Killed, CollectiveError::Left { rank, .. }) => *rank == ODD,
        (Case::Mismatch, CollectiveError::Mismatch { .. }) => true,
        _ => false,
    };
    match made {
        Err(Error::Collective(error)) if right(&error) => Ok(format!("{case:?}").to_lowercase()),
        Err(error) => Err(format!("instead of {case:?}: {error}")),
        Ok(()) => Err(format!("instead of {case:?}: it succeeded")),
    }
}
