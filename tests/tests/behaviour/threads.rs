//! The same bits whatever the number of threads, and in every run.

use burn::tensor::DType;
use rayon::ThreadPoolBuilder;
use tests::reference::{Problem, Sink, Sizes};
use tests::{Random, attend_and_differentiate, on_each_backend};

use crate::context_loss;

#[test]
fn one_thread_two_threads_and_a_second_run_give_the_same_bits() {
    on_each_backend(|device| {
        let mut random = Random::new(1);
        let sizes = Sizes {
            kv_heads: 2,
            ..Sizes::new(2, 4, 301, 299, 16)
        };
        let mut problem = Problem::random(sizes, &mut random);
        problem.causal = true;
        problem.sink = Sink::Learned(random.normals(4));
        let upstream = context_loss(&problem, &mut random);
        let run = |threads: usize| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.expect("threads");
            pool.install(|| attend_and_differentiate(&problem, &upstream, DType::F32, device))
        };
        let one = run(1);
        assert!(run(2) == one, "two threads differ from one");
        assert!(run(2) == one, "a second run differs");
        assert!(run(3) == one, "three threads differ from one");
    });
}
