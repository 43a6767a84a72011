package dsh

import "github.com/refold-dev/refold/pkg/events"

// retry translates the schedule of another attempt. It ends the open call when that is the one that failed. A schedule
// that follows no failed call of the open step, as far as the log tells, is kept as it is.
func (t *translator) retry(r *row) (uint64, error) {
	var d struct {
		turnStep
		ID         text     `json:"retryId"`
		Retry      float64  `json:"retry"`
		MaxRetries float64  `json:"maxRetries"`
		DelayMs    float64  `json:"delayMs"`
		Failure    *failure `json:"failure"`
	}
	if err := unmarshal(r.Data, &d); err != nil {
		return t.foreign(r)
	}
	if t.call != nil && t.call.ref == d.turnStep {
		if err := t.abandon(); err != nil {
			return 0, err
		}
	}
	_, open := t.state.Step()
	_, _, failed := t.state.Outcome()
	_, _, scheduled := t.state.PendingRetry()
	_, compacting := t.state.Compaction()
	retry := count(d.Retry, new(bool))
	if t.call != nil || !open || t.state.Answered() || failed.Code == "" || scheduled || compacting || retry == 0 {
		return t.foreign(r)
	}
	if d.Failure != nil {
		failed = d.Failure.event()
	}
	turn, step := t.place()
	return t.plain(&events.LLMRetry{
		Turn: turn, Step: step, RetryID: string(d.ID), Retry: retry,
		MaxRetries: count(d.MaxRetries, new(bool)), DelayMs: count(d.DelayMs, new(bool)), Failure: failed,
	})
}

// retryStarted translates the end of the delay that is scheduled.
func (t *translator) retryStarted(r *row) (uint64, error) {
	var d struct {
		ID    text    `json:"retryId"`
		Retry float64 `json:"retry"`
	}
	if err := unmarshal(r.Data, &d); err != nil {
		return t.foreign(r)
	}
	p, _, scheduled := t.state.PendingRetry()
	if !scheduled || p.RetryID != string(d.ID) || p.Retry != count(d.Retry, new(bool)) {
		return t.foreign(r)
	}
	return t.plain(&events.LLMRetryStarted{Turn: p.Turn, Step: p.Step, RetryID: p.RetryID, Retry: p.Retry})
}

// startRetry ends a delay whose end the reference system did not record before it went on.
func (t *translator) startRetry() error {
	p, _, scheduled := t.state.PendingRetry()
	if !scheduled {
		return nil
	}
	_, err := t.plain(&events.LLMRetryStarted{Turn: p.Turn, Step: p.Step, RetryID: p.RetryID, Retry: p.Retry})
	return err
}
