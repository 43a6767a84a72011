// Package compact is the policy by which a session's history is made to fit a model's context window: it estimates
// how large the next request is, says when and what to shorten, and holds the texts that go with it.
//
// The package is pure: no clock, no I/O, no goroutine. A worker feeds a [Meter] the same events as its fold, asks
// [Decide] before a step, after an overflow or on command, carries out the answer, writes it to the log, and asks
// again. The loop of asking and doing ends:
//
//   - [KindPrune] shortens results that were not pruned before, and there are finitely many;
//   - [KindSummarise] is counted by the caller, whether it succeeded or not, and at most [Policy.MaxPerTurn] are given
//     out per turn;
//   - a summary counts as progress only when it makes the estimate smaller ([Check]);
//   - after an overflow, [KindNone] is given out only when something was shortened since: a request that the provider
//     refused as too large is never sent again as it was.
//
// Every count of tokens in this package is an int64 and an estimate, except what a provider reported.
package compact
