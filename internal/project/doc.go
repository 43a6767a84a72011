// Package project says of every finished step what it cost, what the provider's prompt cache gave, and why it gave
// less than it could have given; of every auxiliary call it says what it cost.
//
// [Session] is the pure core: it folds one session's log and returns a [Record] for each step/end and each end of an
// auxiliary call. [Projector] is the service around it: it follows all sessions, publishes each record once into the STEPS
// stream and counts it in Prometheus metrics. docs/format/steps.md describes the record and the attribution of causes.
package project
