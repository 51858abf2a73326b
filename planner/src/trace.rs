//! A profile of what torch's profiler has recorded.

use serde_json::Value;

use crate::error::PlanError;
use crate::profile::{Layer, Profile};

/// The node that ends a parameter's part of the backward pass: its gradient is then there.
const READY: &str = "torch::autograd::AccumulateGrad";
/// What every node of the backward pass begins with.
const BACKWARD: &str = "autograd::engine::evaluate_function: ";
const OPTIMIZER: &str = "Optimizer.";
const STEP: &str = "Optimizer.step";

/// An event, in microseconds.
struct Event<'t> {
    name: &'t str,
    start: f64,
    end: f64,
    /// The sides of its first input.
    sides: Option<Vec<u64>>,
    /// Its number in the file.
    number: usize,
}

/// A gradient of one iteration: when it was ready after the one before, in seconds, and its sides.
struct Gradient {
    after: f64,
    sides: Vec<u64>,
}

impl Profile {
    /// The profile of a model whose training torch's profiler has recorded: a Chrome trace of some iterations on the
    /// CPU's side, with shapes.
    ///
    /// ```python
    /// with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as record:
    ///     for _ in range(5):
    ///         step()
    /// record.export_chrome_trace("trace.json")
    /// ```
    ///
    /// An iteration ends where an optimizer of torch makes its step. Its backward pass begins with the first node that
    /// autograd evaluates, and each parameter's gradient is ready when its `AccumulateGrad` begins: what lies between
    /// two of them is the later one's backward time. The forward pass is what lies between the optimizer and the
    /// backward pass, loading of data included. Times are the medians over all iterations but the first, which has no
    /// beginning, unless it is the only one. On a GPU the host runs ahead of its work: record with
    /// `CUDA_LAUNCH_BLOCKING=1`.
    ///
    /// ```
    /// use gradwire_planner::Profile;
    /// let event = |name: &str, start: f64, args: &str| {
    ///     format!(r#"{{"ph": "X", "name": "{name}", "ts": {start}, "dur": 1, "args": {{{args}}}}}"#)
    /// };
    /// let ready = "torch::autograd::AccumulateGrad";
    /// let events = [
    ///     event("aten::linear", 100.0, ""),
    ///     event("autograd::engine::evaluate_function: AddmmBackward0", 130.0, ""),
    ///     event(ready, 150.0, r#""Input Dims": [[10]]"#),
    ///     event(ready, 157.0, r#""Input Dims": [[10, 64]]"#),
    ///     event("Optimizer.step#SGD.step", 160.0, ""),
    /// ];
    /// let profile = Profile::from_torch_trace(&format!(r#"{{"traceEvents": [{}]}}"#, events.join(",")))?;
    /// assert_eq!(profile.forward(), 30e-6);
    /// assert_eq!(profile.layers().iter().map(|layer| layer.elements).collect::<Vec<_>>(), [10, 640]);
    /// assert_eq!(profile.layers()[1].name, "1: [10, 64]");
    /// # Ok::<(), gradwire_planner::PlanError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PlanError::Json`] if the text is no JSON; [`PlanError::Trace`] for a file without events, iterations,
    /// gradients or shapes, with the event's number if there is one; as [`Profile::new`].
    pub fn from_torch_trace(text: &str) -> Result<Self, PlanError> {
        let trace: Value = serde_json::from_str(text).map_err(|error| PlanError::Json {
            line: error.line(),
            column: error.column(),
            message: error.to_string(),
        })?;
        // Old versions of torch write the list alone.
        let list = trace.as_array().or_else(|| trace.get("traceEvents")?.as_array());
        let list = list.ok_or_else(|| {
            wrong(
                None,
                "no list of events, which torch writes as `traceEvents`: hand over what export_chrome_trace wrote",
            )
        })?;
        let mut events = list
            .iter()
            .enumerate()
            .filter_map(|(n, event)| Event::read(n, event).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        events.sort_by(|a, b| a.start.total_cmp(&b.start));
        let iterations = iterations(&events)?;
        let measured = if iterations.len() > 1 { &iterations[1..] } else { &iterations[..] };
        let first = &measured[0].1;
        let layers = (0..first.len()).map(|at| {
            let elements = first[at].sides.iter().try_fold(1u64, |product, side| product.checked_mul(*side));
            let elements = elements.ok_or(PlanError::TooManyElements)?;
            let backward = median(measured.iter().map(|(_, gradients)| gradients[at].after));
            Ok(Layer::new(&format!("{at}: {:?}", first[at].sides), elements, backward))
        });
        Self::new(median(measured.iter().map(|(forward, _)| *forward)), layers.collect::<Result<_, PlanError>>()?)
    }
}

impl<'t> Event<'t> {
    /// An event that lasts; none for marks, counters and what names the threads.
    fn read(number: usize, event: &'t Value) -> Result<Option<Self>, PlanError> {
        if event.get("ph").and_then(Value::as_str) != Some("X") {
            return Ok(None);
        }
        let name = event.get("name").and_then(Value::as_str).unwrap_or_default();
        let time = |field: &str| event.get(field).and_then(Value::as_f64);
        let (Some(start), Some(length)) = (time("ts"), time("dur")) else {
            return Err(wrong(Some((number, name)), "no numbers `ts` and `dur`"));
        };
        if length < 0.0 {
            return Err(wrong(Some((number, name)), "a negative `dur`"));
        }
        let sides = || {
            let sides = event.get("args")?.get("Input Dims")?.get(0)?.as_array()?;
            sides.iter().map(Value::as_u64).collect::<Option<Vec<_>>>()
        };
        Ok(Some(Self { name, start, end: start + length, sides: sides(), number }))
    }
}

/// Seconds of the forward pass, and the gradients in the order of readiness, of each iteration.
fn iterations(events: &[Event<'_>]) -> Result<Vec<(f64, Vec<Gradient>)>, PlanError> {
    let mut all = Vec::<(f64, Vec<Gradient>)>::new();
    // The iteration so far: the end of the optimizer's work or the first event, the beginning of the backward pass,
    // and its gradients.
    let (mut begins, mut backward) = (None::<f64>, None::<f64>);
    let mut last = 0.0;
    let mut gradients = Vec::new();
    for event in events {
        if event.name.starts_with(STEP) && !gradients.is_empty() {
            let (Some(begins), Some(backward)) = (begins, backward) else { continue };
            let done: Vec<Gradient> = std::mem::take(&mut gradients);
            if let Some((_, before)) = all.last()
                && !before.iter().map(|one| &one.sides).eq(done.iter().map(|one| &one.sides))
            {
                let problem = "an iteration with other gradients than the one before: record iterations that are alike";
                return Err(wrong(Some((event.number, event.name)), problem));
            }
            all.push(((backward - begins).max(0.0) / 1e6, done));
        }
        if event.name.starts_with(OPTIMIZER) {
            (begins, backward) = (Some(event.end), None);
            continue;
        }
        begins.get_or_insert(event.start);
        if event.name.starts_with(BACKWARD) || event.name == READY {
            if backward.is_none() {
                (backward, last) = (Some(event.start), event.start);
            }
            if event.name == READY {
                let Some(sides) = event.sides.clone() else {
                    let problem = "no `Input Dims`: record with record_shapes=True";
                    return Err(wrong(Some((event.number, event.name)), problem));
                };
                gradients.push(Gradient { after: (event.start - last) / 1e6, sides });
                last = event.start;
            }
        }
    }
    if all.is_empty() {
        let problem = match events.iter().any(|event| event.name == READY) {
            false => "no torch::autograd::AccumulateGrad: record a backward pass, with the CPU's activities",
            true => "no Optimizer.step behind a backward pass: let an optimizer of torch end each iteration",
        };
        return Err(wrong(None, problem));
    }
    Ok(all)
}

/// The middle value, or the mean of the two in the middle; there is at least one.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

fn wrong(event: Option<(usize, &str)>, problem: &'static str) -> PlanError {
    PlanError::Trace { event: event.map(|(number, name)| (number, name.to_owned())), problem }
}
