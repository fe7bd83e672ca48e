//! The gradient at the sink: its weight in each row times what a weight's gradient is compared with.

use crate::backward::Incoming;
use crate::context::Context;
use crate::erased::Shared;
use crate::parallel;
use crate::real::Real;

/// Sums the sink's gradient head by head, each over all samples in order.
pub(crate) fn run<A: Real>(ctx: &Context<'_, A>, saved: &Incoming<'_, A>, target: &Shared<'_, A>) {
    let Some(sink) = ctx.sink else { return };
    let sizes = &ctx.sizes;
    let flops = 4.0 * (sizes.batch * sizes.queries * (sizes.d_v + 8)) as f64;
    parallel::run(sizes.heads, flops, |tasks| {
        let (mut out, mut grad) = (vec![A::ZERO; sizes.d_v], vec![A::ZERO; sizes.d_v]);
        while let Some(run) = tasks.next() {
            for head in run {
                let logit: f64 = sink[head].into();
                let mut total = 0.0;
                for batch in 0..sizes.batch {
                    for row in 0..sizes.queries {
                        let at = (batch * sizes.heads + head) * sizes.queries + row;
                        let lse: f64 = saved.lse[at].into();
                        if lse == f64::NEG_INFINITY {
                            continue;
                        }
                        let mut sum = 0.0;
                        // Of a row that sees nothing only the logsumexp, which is the sink, has a gradient: its
                        // gradient at the output may be anything.
                        let sees = ctx.key_ranges.is_none_or(|ranges| {
                            let (first, end) = ranges.get(batch, row, sizes.queries);
                            first < end
                        });
                        if sees && sizes.keys > 0 {
                            saved.out.read(batch, head, row, 0, &mut out);
                            saved.grad_out.read(batch, head, row, 0, &mut grad);
                            for (&out, &grad) in out.iter().zip(&grad) {
                                sum += out.into() * grad.into();
                            }
                        }
                        if let Some(grad_lse) = saved.grad_lse {
                            sum -= grad_lse[at].into();
                        }
                        total -= (logit - lse).exp() * sum;
                    }
                }
                // SAFETY: each task has a head of its own.
                let to = unsafe { target.part(head, 1) };
                to[0] = A::from_f64(total);
            }
        }
    });
}
