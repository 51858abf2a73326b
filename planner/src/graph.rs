//! Tasks that wait for one another on resources that do one thing at a time.

use serde::{Deserialize, Serialize};

use crate::error::{Place, PlanError, checked};

/// What runs a task, one task at a time and in the order in which tasks were added, as a stream of a GPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Reading samples and copying them to the device.
    Input,
    /// Forward, backward, encode and update.
    Compute,
    /// Collectives.
    Network,
    /// Decoding on a stream or in threads of its own.
    Decode,
}

impl Resource {
    /// All of them, in the order of a chart's rows.
    pub const ALL: [Self; 4] = [Self::Input, Self::Compute, Self::Network, Self::Decode];
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Samples are read from storage.
    Read,
    /// Samples are copied to the device.
    Copy,
    /// The forward pass.
    Forward,
    /// The backward pass of a layer or of several.
    Backward,
    /// Gradients become payloads.
    Encode,
    /// A collective.
    Communicate,
    /// Payloads become gradients.
    Decode,
    /// The optimizer's step.
    Update,
}

/// A piece of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its name in messages and charts.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The resource that runs it.
    pub resource: Resource,
    /// Seconds that it takes.
    pub seconds: f64,
    /// The numbers of the tasks that it waits for, beside those before it on its resource.
    pub after: Vec<usize>,
}

/// Tasks of an iteration or of several: the model of Shi, Wang, Chu and Li (2018), "A DAG model of synchronous
/// stochastic gradient descent".
///
/// ```
/// use gradwire_planner::{Graph, Kind, Resource};
///
/// let mut graph = Graph::default();
/// let backward = graph.add("backward", Kind::Backward, Resource::Compute, 2.0, &[]);
/// graph.add("all-reduce", Kind::Communicate, Resource::Network, 3.0, &[backward]);
/// graph.add("the next layer", Kind::Backward, Resource::Compute, 4.0, &[]);
/// assert_eq!(graph.schedule()?.makespan(), 6.0);
/// # Ok::<(), gradwire_planner::PlanError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    tasks: Vec<Task>,
}

/// When each task of a graph runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// For each task, in the order in which they were added, the seconds at which it begins and ends.
    pub spans: Vec<(f64, f64)>,
}

impl Schedule {
    /// Seconds until the last task ends, 0 for no task.
    pub fn makespan(&self) -> f64 {
        self.spans.iter().fold(0.0, |end, span| span.1.max(end))
    }
}

impl Graph {
    /// Adds a task after those that its resource has, and returns its number.
    pub fn add(&mut self, name: &str, kind: Kind, resource: Resource, seconds: f64, after: &[usize]) -> usize {
        self.push(Task { name: name.to_owned(), kind, resource, seconds, after: after.to_vec() })
    }

    /// As [`add`](Self::add).
    pub fn push(&mut self, task: Task) -> usize {
        self.tasks.push(task);
        self.tasks.len() - 1
    }

    /// Lets the task `later` wait for `earlier`. Numbers are looked at by [`schedule`](Self::schedule).
    pub fn wait(&mut self, later: usize, earlier: usize) {
        if let Some(task) = self.tasks.get_mut(later) {
            task.after.push(earlier);
        }
    }

    /// The tasks, in the order in which they were added.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Runs each task as soon as those that it waits for have ended and its resource is free.
    ///
    /// Each end is the longest path to it in the graph in which every task also waits for the one before it on its
    /// resource. The result depends on nothing but the graph.
    ///
    /// # Errors
    ///
    /// A circle, by names; it may lead through the order of a resource, where a task waits for one after it. A task
    /// that waits for a number which is not there. A time that is negative, NaN or infinite.
    pub fn schedule(&self) -> Result<Schedule, PlanError> {
        let waits = self.waits()?;
        let mut spans = vec![(0.0, 0.0); self.tasks.len()];
        for number in self.order(&waits)? {
            let begin = waits[number].iter().map(|&before: &usize| spans[before].1).fold(0.0, f64::max);
            spans[number] = (begin, begin + self.tasks[number].seconds);
        }
        Ok(Schedule { spans })
    }

    /// What each task waits for, the task before it on its resource among them.
    fn waits(&self) -> Result<Vec<Vec<usize>>, PlanError> {
        let mut last = [None; Resource::ALL.len()];
        let mut waits = Vec::with_capacity(self.tasks.len());
        for (number, task) in self.tasks.iter().enumerate() {
            checked(|| Place::layer(number, &task.name, "seconds"), task.seconds)?;
            if let Some(&found) = task.after.iter().find(|&&before| before >= self.tasks.len()) {
                return Err(PlanError::Task { task: task.name.clone(), found, tasks: self.tasks.len() });
            }
            let before = last[task.resource as usize].replace(number);
            waits.push(task.after.iter().copied().chain(before).collect());
        }
        Ok(waits)
    }

    /// The tasks in an order in which each follows all that it waits for.
    fn order(&self, waits: &[Vec<usize>]) -> Result<Vec<usize>, PlanError> {
        let mut missing: Vec<usize> = waits.iter().map(Vec::len).collect();
        let mut followers = vec![Vec::new(); waits.len()];
        for (number, before) in waits.iter().enumerate() {
            before.iter().for_each(|&before| followers[before].push(number));
        }
        let mut order: Vec<usize> = (0..waits.len()).filter(|&number| missing[number] == 0).collect();
        let mut next = 0;
        while let Some(&number) = order.get(next) {
            next += 1;
            for &follower in &followers[number] {
                missing[follower] -= 1;
                if missing[follower] == 0 {
                    order.push(follower);
                }
            }
        }
        match missing.iter().position(|&count| count > 0) {
            None => Ok(order),
            Some(stuck) => Err(PlanError::Cycle(self.circle(waits, &missing, stuck))),
        }
    }

    /// The names along a circle that `stuck` waits for. Every task that misses one waits for another such task, so
    /// that walking back from it ends in a circle.
    fn circle(&self, waits: &[Vec<usize>], missing: &[usize], stuck: usize) -> Vec<String> {
        let mut path = vec![stuck];
        let mut now = stuck;
        while let Some(&before) = waits[now].iter().find(|&&before| missing[before] > 0) {
            if let Some(first) = path.iter().position(|&seen| seen == before) {
                // The walk went against time.
                let mut circle = path.split_off(first);
                circle.push(before);
                circle.reverse();
                return circle.into_iter().map(|number| self.tasks[number].name.clone()).collect();
            }
            path.push(before);
            now = before;
        }
        Vec::new()
    }
}
