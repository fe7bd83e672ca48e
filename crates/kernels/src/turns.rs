//! The order in which tasks add to sums that they share.
//!
//! Gradients at keys are sums over queries, and queries are spread over tasks. Copies of the sums for each task would
//! need memory and another pass. Here the tasks of a head add to one block of keys after another, each when all tasks
//! before it that see the block have done so: the order, and so every bit of the sums, is that of the tasks, whoever
//! runs them. A task waits only for tasks handed out before it, so that the first one unfinished never waits.

use crate::context::{BLOCK, Context, KEYS};
use crate::real::Real;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Blocks of queries that one task visits keys with: they share what is read and written of keys.
pub(crate) const TEAM: usize = 4;

/// Tasks that are worth more than large teams.
const TASKS: usize = 64;

/// Whose turn it is at each block of keys of each key head.
pub(crate) struct Turns {
    /// Blocks of queries of a query head, and of a team.
    blocks: usize,
    pub(crate) team: usize,
    /// Teams of a query head, and query heads of a key head.
    teams: usize,
    group: usize,
    /// Blocks of keys.
    slots: usize,
    /// Whether samples differ in what is here.
    by_sample: bool,
    /// The blocks of keys that each team sees.
    spans: Vec<(usize, usize)>,
    /// How many teams see each block of keys.
    visitors: Vec<usize>,
    done: Vec<AtomicU32>,
    /// Whether a task was given up: what waits for it would wait forever.
    broken: AtomicBool,
}

/// A task: a team of queries of one query head.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    pub(crate) batch: usize,
    pub(crate) kv_head: usize,
    /// Which of the query heads that share the key head.
    pub(crate) member: usize,
    team: usize,
}

impl Turns {
    pub(crate) fn new<A: Real>(ctx: &Context<'_, A>) -> Self {
        let sizes = &ctx.sizes;
        // Without queries or query heads there is still a task, of no blocks, which clears the sums.
        let blocks = if sizes.heads == 0 { 0 } else { ctx.blocks() };
        let team = (sizes.batch * sizes.heads * blocks / TASKS).clamp(1, TEAM);
        let teams = blocks.div_ceil(team).max(1);
        let slots = sizes.keys.div_ceil(KEYS);
        let by_sample = ctx.has_ranges_a_sample();
        let samples = if by_sample { sizes.batch } else { 1 };
        let mut spans = Vec::with_capacity(samples * teams);
        let mut visitors = vec![0; samples * slots];
        for sample in 0..samples {
            for index in 0..teams {
                let end_block = blocks.min((index + 1) * team);
                let rows = index * team * BLOCK..sizes.queries.min(end_block * BLOCK);
                let (mut first, mut end) = (usize::MAX, 0);
                for row in rows {
                    let (from, to) = match &ctx.key_ranges {
                        None => (0, sizes.keys),
                        Some(ranges) => {
                            let (from, to) = ranges.get(sample, row, sizes.queries);
                            (from as usize, to as usize)
                        }
                    };
                    if from < to {
                        (first, end) = (first.min(from), end.max(to));
                    }
                }
                let span = (first.min(end) / KEYS, end.div_ceil(KEYS));
                for count in &mut visitors[sample * slots..][span.0..span.1] {
                    *count += 1;
                }
                spans.push(span);
            }
        }
        let heads = sizes.batch * sizes.kv_heads;
        Self {
            blocks,
            team,
            teams,
            group: sizes.group().max(1),
            slots,
            by_sample,
            spans,
            visitors,
            done: (0..heads * slots).map(|_| AtomicU32::new(0)).collect(),
            broken: AtomicBool::new(false),
        }
    }

    /// Tasks of a key head.
    pub(crate) fn chain(&self) -> usize {
        self.teams * self.group
    }

    /// The task of a number, for `heads` key heads in all of `kv_heads` a sample.
    ///
    /// Tasks of several heads alternate, so that threads seldom meet at one. Few enough that their sums stay near.
    pub(crate) fn task(
        &self,
        number: usize,
        heads: usize,
        kv_heads: usize,
        threads: usize,
    ) -> Task {
        let together = 2 * threads;
        let (round, rest) = (
            number / (together * self.chain()),
            number % (together * self.chain()),
        );
        let count = together.min(heads - round * together);
        let kv = round * together + rest % count;
        let place = rest / count;
        Task {
            batch: kv / kv_heads,
            kv_head: kv % kv_heads,
            member: place / self.teams,
            // The last rows first: under a causal mask they are the longest.
            team: self.teams - 1 - place % self.teams,
        }
    }

    /// A task's first block of queries and how many it has.
    pub(crate) fn blocks(&self, task: Task) -> (usize, usize) {
        let first = task.team * self.team;
        (first, self.team.min(self.blocks - first))
    }

    fn sample(&self, task: Task) -> usize {
        if self.by_sample { task.batch } else { 0 }
    }

    /// The blocks of keys that a task sees.
    pub(crate) fn span(&self, task: Task) -> (usize, usize) {
        self.spans[self.sample(task) * self.teams + task.team]
    }

    /// The blocks of keys that nobody sees, if this task is the one to clear them.
    pub(crate) fn unseen(&self, task: Task) -> impl Iterator<Item = usize> {
        let first = task.member == 0 && task.team == self.teams - 1;
        let sample = self.sample(task);
        (0..if first { self.slots } else { 0 })
            .filter(move |slot| self.visitors[sample * self.slots + slot] == 0)
    }

    /// How many tasks add to a block of keys before this one.
    fn before(&self, task: Task, slot: usize) -> usize {
        let sample = self.sample(task);
        let spans = &self.spans[sample * self.teams..][..self.teams];
        let seen = |span: &&(usize, usize)| (span.0..span.1).contains(&slot);
        let later_rows = spans[task.team + 1..].iter().filter(seen).count();
        task.member * self.visitors[sample * self.slots + slot] + later_rows
    }

    fn counter(&self, kv: usize, slot: usize) -> &AtomicU32 {
        &self.done[kv * self.slots + slot]
    }

    /// The turn of a task at a block of keys of a key head.
    pub(crate) fn turn(&self, task: Task, kv: usize, slot: usize) -> Turn<'_> {
        Turn {
            counter: self.counter(kv, slot),
            broken: &self.broken,
            before: self.before(task, slot),
            taken: false,
        }
    }
}

/// A task's turn at a block of keys.
pub(crate) struct Turn<'a> {
    counter: &'a AtomicU32,
    broken: &'a AtomicBool,
    before: usize,
    taken: bool,
}

impl Turn<'_> {
    /// Waits for the turn. Whether the sums are to be started: nobody was here before, not even this task.
    pub(crate) fn take(&mut self) -> bool {
        if self.taken {
            return false;
        }
        let mut tries = 0_u32;
        // What was added before is to be seen after.
        while self.counter.load(Ordering::Acquire) as usize != self.before {
            assert!(
                !self.broken.load(Ordering::Relaxed),
                "another thread panicked"
            );
            tries += 1;
            if tries < 100 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        self.taken = true;
        self.before == 0
    }

    /// Gives the turn, which must have been taken, to the next task.
    pub(crate) fn pass(self) {
        debug_assert!(self.taken);
        self.counter.fetch_add(1, Ordering::Release);
    }
}

/// Tells the others if its thread panics before its tasks are done.
pub(crate) struct Watch<'a>(&'a Turns);

impl<'a> Watch<'a> {
    pub(crate) fn over(turns: &'a Turns) -> Self {
        Self(turns)
    }

    /// All is well.
    pub(crate) fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.broken.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyRanges, Problem, View};

    #[test]
    fn tasks_come_to_each_block_of_keys_one_after_another() {
        let (batch, heads, kv_heads, queries, keys) = (2, 6, 3, 3000, 300);
        let x = vec![0.0_f32; batch * heads * queries];
        let end: Vec<u32> = (0..queries as u32).map(|row| (row / 9).min(300)).collect();
        let first: Vec<u32> = end.iter().map(|&end| end.saturating_sub(70)).collect();
        let mut problem = Problem::new(
            View::contiguous(&x, [batch, heads, queries, 1]).unwrap(),
            View::contiguous(&x[..batch * kv_heads * keys], [batch, kv_heads, keys, 1]).unwrap(),
            View::contiguous(&x[..batch * kv_heads * keys], [batch, kv_heads, keys, 1]).unwrap(),
        );
        problem.key_ranges = Some(KeyRanges {
            first: &first,
            end: &end,
            position: &[],
        });
        let ctx = Context::new(&problem).unwrap();
        let turns = Turns::new(&ctx);
        assert_eq!(turns.team, TEAM);
        for threads in [1, 2, 5] {
            let mut came = vec![0; batch * kv_heads * turns.slots];
            for number in 0..batch * kv_heads * turns.chain() {
                let task = turns.task(number, batch * kv_heads, kv_heads, threads);
                let (first, end) = turns.span(task);
                for slot in first..end {
                    let kv = task.batch * kv_heads + task.kv_head;
                    assert_eq!(turns.before(task, slot), came[kv * turns.slots + slot]);
                    came[kv * turns.slots + slot] += 1;
                }
            }
            let each = heads / kv_heads * turns.visitors[0];
            assert!(came.chunks(turns.slots).all(|slots| slots[0] == each));
        }
    }

    #[test]
    #[should_panic = "another thread panicked"]
    fn whoever_waits_for_a_thread_that_panicked_panics_too() {
        let x = [0.0_f32];
        let view = View::contiguous(&x, [1, 1, 1, 1]).unwrap();
        let problem = Problem::new(view, view, view);
        let turns = Turns::new(&Context::new(&problem).unwrap());
        drop(Watch::over(&turns));
        let mut turn = turns.turn(turns.task(0, 1, 1, 1), 0, 0);
        turn.before = 1;
        turn.take();
    }
}
