package verify

import (
	"sync/atomic"
	"time"
)

// looks says when a check that is made again and again was made last. It is safe for concurrent use.
type looks struct {
	ended    atomic.Int64 // Unix nanoseconds, 0: never. That of a single session may have failed
	complete atomic.Int64 // likewise; nothing has failed
}

// end records that a look has come to its end, and whether without an error.
func (l *looks) end(now time.Time, complete bool) {
	l.ended.Store(now.UnixNano())
	if complete {
		l.complete.Store(now.UnixNano())
	}
}

// since returns how long ago a look has ended, or how long ago the start was when none has.
func (l *looks) since(now, start time.Time) time.Duration {
	if at := l.ended.Load(); at > 0 {
		start = time.Unix(0, at)
	}
	return now.Sub(start)
}

// seconds returns the time of the last complete look in Unix seconds, 0 when there was none.
func (l *looks) seconds() float64 { return float64(l.complete.Load()/int64(time.Millisecond)) / 1000 }
