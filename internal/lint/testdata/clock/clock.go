// Package clock is the test data of the analyzer of this name.
package clock

import "time"

func uses(t time.Time) time.Duration {
	now := time.Now // want `time.Now: take the time as an input`
	if t.After(now()) {
		<-time.After(time.Second) // want `time.After`
	}
	return time.Since(t) // want `time.Since`
}

func arithmetic(t time.Time) time.Time {
	return t.Add(3 * time.Millisecond).Truncate(time.Second)
}

func unix(ms int64) time.Time { return time.UnixMilli(ms) }
