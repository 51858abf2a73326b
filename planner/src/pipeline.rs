//! Groups that are encoded, exchanged and decoded: an exact search over groups and over what each takes.

use serde::{Deserialize, Serialize};

use crate::codec::CodecCost;
use crate::error::PlanError;
use crate::graph::{Graph, Kind, Resource};
use crate::groups::Groups;
use crate::line::Line;
use crate::profile::{Layer, Profile};

/// A way for a group of layers to get from rank to rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// What its payload costs to make and to read, and its bytes.
    pub codec: CodecCost,
    /// The collective, in seconds over the bytes of one rank's payload.
    pub exchange: Line,
    /// How many payloads each rank decodes: all ranks' for a gather, 1 for a sum, 2 in two phases, and in
    /// a tree of merges one per merge on the way to the root and the result.
    pub payloads: u32,
}

impl Route {
    /// Seconds to encode, to exchange and to decode this many elements of each rank.
    pub fn seconds(&self, elements: u64) -> [f64; 3] {
        let exchange = self.exchange.at(self.codec.bytes(elements));
        [self.codec.encode.at(elements), exchange, f64::from(self.payloads) * self.codec.decode.at(elements)]
    }
}

/// Groups, and the route that each takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routed {
    /// The groups.
    pub groups: Groups,
    /// For each group, the number of its route.
    pub routes: Vec<usize>,
}

/// An iteration whose groups are encoded where the backward pass is computed, and decoded elsewhere.
///
/// Three resources do one thing at a time. On the first, the backward pass of a group's layers is followed by the
/// group's encode, and then by the next group's layers, as in Shi et al. 2020 (OMGS). On the second, groups are
/// exchanged in order. On the third, a stream of its own or the CPU's threads, they are decoded in order.
#[derive(Clone, Debug)]
pub struct Pipeline<'p> {
    profile: &'p Profile,
    routes: Vec<Route>,
}

/// When the three resources are free after the first layers, and how it came to that.
#[derive(Clone, Copy, Debug)]
struct State {
    computed: f64,
    exchanged: f64,
    decoded: f64,
    /// The first layer of the last group, the state before it, and its route.
    from: (usize, usize, usize),
}

impl State {
    /// As if nothing but this layer's backward pass were computed.
    fn add_layer(self, layer: &Layer) -> Self {
        Self { computed: self.computed + layer.backward, ..self }
    }

    /// A group of this many elements, whose layers are computed.
    fn add_group(self, route: &Route, elements: u64) -> Self {
        let [encode, exchange, decode] = route.seconds(elements);
        let computed = self.computed + encode;
        let exchanged = computed.max(self.exchanged) + exchange;
        Self { computed, exchanged, decoded: exchanged.max(self.decoded) + decode, ..self }
    }
}

impl<'p> Pipeline<'p> {
    /// A model of these layers, whose groups may take any of these routes.
    ///
    /// # Errors
    ///
    /// No route; a cost that is negative, NaN or infinite.
    pub fn new(profile: &'p Profile, routes: Vec<Route>) -> Result<Self, PlanError> {
        if routes.is_empty() {
            return Err(PlanError::Length { what: "routes", found: 0, wanted: 1 });
        }
        for route in &routes {
            route.codec.check()?;
            route.exchange.check("exchange")?;
        }
        Ok(Self { profile, routes })
    }

    /// The routes.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        self.profile
    }

    /// All groups by one route.
    pub fn by(&self, groups: Groups, route: usize) -> Routed {
        Routed { routes: vec![route; groups.len()], groups }
    }

    /// Seconds from the beginning of the forward pass until the last group is decoded.
    ///
    /// # Errors
    ///
    /// Groups of another number of layers; a route per group that is not there, or that has no number.
    pub fn finish(&self, routed: &Routed) -> Result<f64, PlanError> {
        self.check(routed)?;
        let mut state = self.begin();
        for (group, &route) in routed.groups.ranges().zip(&routed.routes) {
            let layers = &self.profile.layers()[group];
            state = layers.iter().fold(state, |state, layer| state.add_layer(layer));
            state = state.add_group(&self.routes[route], layers.iter().map(|layer| layer.elements).sum());
        }
        Ok(state.decoded)
    }

    /// The same as tasks, for a chart.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn graph(&self, routed: &Routed) -> Result<Graph, PlanError> {
        self.check(routed)?;
        let mut graph = Graph::default();
        graph.add("forward", Kind::Forward, Resource::Compute, self.profile.forward(), &[]);
        for (group, &route) in routed.groups.ranges().zip(&routed.routes) {
            let layers = &self.profile.layers()[group];
            for layer in layers {
                graph.add(&layer.name, Kind::Backward, Resource::Compute, layer.backward, &[]);
            }
            let route = &self.routes[route];
            let [encode, exchange, decode] = route.seconds(layers.iter().map(|layer| layer.elements).sum());
            let first = layers.first().map_or("", |layer| layer.name.as_str());
            let name = format!("{first} and {} more, {}", layers.len() - 1, route.codec.name);
            let encoded = graph.add(&name, Kind::Encode, Resource::Compute, encode, &[]);
            let exchanged = graph.add(&name, Kind::Communicate, Resource::Network, exchange, &[encoded]);
            graph.add(&name, Kind::Decode, Resource::Decode, decode, &[exchanged]);
        }
        Ok(graph)
    }

    /// The groups and routes that end first.
    ///
    /// After the first `j` layers, the rest depends on the three times at which the resources are free. A state
    /// dominates another one if none of its times is later. The search keeps, for each `j`, the states that no other
    /// dominates, and extends each by every group and route that can follow. It leaves out a state that cannot end
    /// before a plan that is known. Such a plan is found first, by the same search with a few states per layer.
    ///
    /// The optimum is exact up to the rounding of sums of times, whose order differs from that of
    /// [`finish`](Self::finish). How many states there are depends on the costs: hundreds of layers with costs that
    /// are no lines can have more than fit into memory. [`exact_within`](Self::exact_within) has a limit.
    pub fn exact(&self) -> Routed {
        self.exact_within(usize::MAX).0
    }

    /// As [`exact`](Self::exact), with at most this many states per layer, at least 1, and whether that many were
    /// enough: if so, the plan is the optimum. Otherwise those states are kept whose earliest end is least.
    pub fn exact_within(&self, states: usize) -> (Routed, bool) {
        let bounds = Bounds::new(self.profile, &self.routes);
        let count = self.profile.layers().len();
        let simple = (0..self.routes.len())
            .flat_map(|route| [Groups::each(count), Groups::single(count)].map(|groups| self.by(groups, route)));
        let mut best = None;
        let mut least = f64::INFINITY;
        for plan in simple {
            self.keep_better(plan, &mut best, &mut least);
        }
        let mut complete = false;
        for most in [states.min(NARROW), states] {
            let (found, whole) = self.search(&bounds, most, least);
            found.into_iter().for_each(|plan| self.keep_better(plan, &mut best, &mut least));
            complete = whole;
            if complete || states <= NARROW {
                break;
            }
        }
        (best.unwrap_or_else(|| self.by(Groups::each(count), 0)), complete)
    }

    fn keep_better(&self, plan: Routed, best: &mut Option<Routed>, least: &mut f64) {
        // Plans of the search are valid, so that none is lost here.
        if let Ok(seconds) = self.finish(&plan)
            && (best.is_none() || seconds < *least)
        {
            (*best, *least) = (Some(plan), seconds);
        }
    }

    /// The best plan that ends by `limit`, if the search meets one, and whether no state was left out that might.
    fn search(&self, bounds: &Bounds, most: usize, limit: f64) -> (Option<Routed>, bool) {
        let layers = self.profile.layers();
        // Sums in another order differ by their rounding.
        let limit = limit + limit * 8.0 * (layers.len() as f64 + 1.0) * f64::EPSILON;
        let mut states: Vec<Vec<State>> = vec![vec![self.begin()]];
        let mut whole = true;
        for end in 1..=layers.len() {
            let mut found = Vec::new();
            let (mut elements, mut backward) = (0, 0.0);
            for first in (0..end).rev() {
                elements += layers[first].elements;
                backward += layers[first].backward;
                for (route, by) in self.routes.iter().enumerate() {
                    for (before, &state) in states[first].iter().enumerate() {
                        let computed = state.computed + backward;
                        let state = State { computed, from: (first, before, route), ..state };
                        let state = state.add_group(by, elements);
                        if bounds.least(&state, end) <= limit {
                            found.push(state);
                        }
                    }
                }
            }
            let mut kept = undominated(found, bounds, end);
            if kept.len() > most.max(1) {
                kept.sort_by(|a, b| bounds.least(a, end).total_cmp(&bounds.least(b, end)));
                kept.truncate(most.max(1));
                whole = false;
            }
            states.push(kept);
        }
        (states.last().is_some_and(|last| !last.is_empty()).then(|| self.walk_back(&states)), whole)
    }

    fn walk_back(&self, states: &[Vec<State>]) -> Routed {
        let count = states.len() - 1;
        let last = states[count].iter().enumerate();
        let mut at = last.min_by(|a, b| a.1.decoded.total_cmp(&b.1.decoded)).map_or(0, |(index, _)| index);
        let (mut begins, mut routes, mut end) = (Vec::new(), Vec::new(), count);
        while end > 0 {
            let (first, before, route) = states[end][at].from;
            begins.push(first);
            routes.push(route);
            (end, at) = (first, before);
        }
        routes.reverse();
        Routed { groups: Groups::from_begins(begins, count), routes }
    }

    fn begin(&self) -> State {
        State { computed: self.profile.forward(), exchanged: 0.0, decoded: 0.0, from: (0, 0, 0) }
    }

    fn check(&self, routed: &Routed) -> Result<(), PlanError> {
        let layers = self.profile.layers().len();
        if routed.groups.layers() != layers {
            return Err(PlanError::Groups { found: routed.groups.clone().into(), layers });
        }
        if routed.routes.len() != routed.groups.len() {
            let (found, wanted) = (routed.routes.len(), routed.groups.len());
            return Err(PlanError::Length { what: "routes of groups", found, wanted });
        }
        match routed.routes.iter().find(|&&route| route >= self.routes.len()) {
            Some(&found) => Err(PlanError::Route { found, routes: self.routes.len() }),
            None => Ok(()),
        }
    }
}

/// States per layer of the search that finds a plan to compare with.
const NARROW: usize = 16;

/// What any plan needs at least after the first `j` layers, for each `j`.
#[derive(Debug)]
struct Bounds {
    /// Seconds of the backward passes.
    backward: Vec<f64>,
    /// The most seconds of compute, encodes among them.
    most: Vec<f64>,
    /// Seconds from the end of the group before until the next group is encoded, and of its exchange and decode: the
    /// least of any route for the next layer by itself.
    next: Vec<[f64; 3]>,
    /// Seconds of the exchanges, and then of the last layer's decode.
    exchange: Vec<f64>,
    /// The least of any route for the last layer by itself.
    last: [f64; 3],
}

impl Bounds {
    fn new(profile: &Profile, routes: &[Route]) -> Self {
        let layers = profile.layers();
        let least = |elements: u64| {
            let parts = routes.iter().map(|route| route.seconds(elements));
            parts.fold([f64::INFINITY; 3], |least, seconds| [0, 1, 2].map(|part| least[part].min(seconds[part])))
        };
        let last = layers.last().map_or([0.0; 3], |layer| least(layer.elements));
        let (mut backward, mut most, mut exchange, mut next) = (vec![0.0], vec![0.0], vec![0.0], vec![[0.0; 3]]);
        let (mut passed, mut elements, mut starts) = (0.0, 0u64, 0.0f64);
        for layer in layers.iter().rev() {
            passed += layer.backward;
            elements += layer.elements;
            // A curve from zero elements to all rises by no more than its value there, and every group may start anew.
            starts += routes.iter().map(|route| route.codec.encode.at(0)).fold(0.0, f64::max);
            let rises = routes.iter().map(|route| route.codec.encode.at(elements)).fold(0.0, f64::max);
            // Lines: a group of all costs no more than the sum over groups.
            let all = least(elements)[1];
            backward.push(passed);
            most.push(passed + starts + rises);
            exchange.push(all + last[2]);
            let [encode, first, decode] = least(layer.elements);
            next.push([layer.backward + encode, first, decode]);
        }
        for list in [&mut backward, &mut most, &mut exchange] {
            list.reverse();
        }
        next.reverse();
        Self { backward, most, next, exchange, last }
    }

    /// The earliest end that any plan reaches from this state after the first `end` layers.
    fn least(&self, state: &State, end: usize) -> f64 {
        if end + 1 == self.backward.len() {
            return state.decoded;
        }
        let computed = state.computed + self.backward[end] + self.last.iter().sum::<f64>();
        computed.max(state.exchanged + self.exchange[end]).max(state.decoded + self.last[2])
    }

    /// The times of a state as far as they matter: each as late as can be without any end being later.
    ///
    /// The network and the decoder wait for the next layer anyway. Compute that ends before the network is free,
    /// however much the rest takes, may end later by as much.
    fn key(&self, state: &State, end: usize) -> [f64; 3] {
        if end + 1 == self.backward.len() {
            return [0.0, 0.0, state.decoded];
        }
        let [ready, exchange, _] = self.next[end];
        let exchanged = state.exchanged.max(state.computed + ready);
        let decoded = state.decoded.max(exchanged + exchange);
        let computed = state.computed.max(exchanged - self.most[end]);
        [computed, exchanged, decoded]
    }
}

/// The states of which none is as late as another in all three times. Of equal ones, that with the largest last group
/// stays.
fn undominated(states: Vec<State>, bounds: &Bounds, end: usize) -> Vec<State> {
    let mut keyed: Vec<([f64; 3], State)> = states.into_iter().map(|s| (bounds.key(&s, end), s)).collect();
    // A stable sort: larger last groups were found later.
    keyed.reverse();
    keyed.sort_by(|(a, _), (b, _)| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])).then(a[2].total_cmp(&b[2])));
    // The other two times of kept states, all of which are computed no later than the next state: pairs of which
    // none dominates another, by rising exchange and falling decode.
    let mut stairs: Vec<(f64, f64)> = Vec::new();
    let mut kept = Vec::new();
    for ([_, exchanged, decoded], state) in keyed {
        let at = stairs.partition_point(|stair| stair.0 <= exchanged);
        if at > 0 && stairs[at - 1].1 <= decoded {
            continue;
        }
        let first = stairs.partition_point(|stair| stair.0 < exchanged);
        let covered = stairs[first..].iter().take_while(|stair| stair.1 >= decoded).count();
        stairs.splice(first..first + covered, [(exchanged, decoded)]);
        kept.push(state);
    }
    kept
}
