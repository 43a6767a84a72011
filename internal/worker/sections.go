package worker

import (
	"context"
	"time"
)

// The names of the context sections of this package.
const (
	SectionCwd  = "cwd"
	SectionDate = "date"
)

// CwdSection returns the section that names the session's working directory, for sessions that have one.
func CwdSection() ContextSection { return cwdSection{} }

type cwdSection struct{}

func (cwdSection) Name() string { return SectionCwd }

func (cwdSection) Text(_ context.Context, at Point) (string, error) {
	if at.Cwd == "" {
		return "", nil
	}
	return "The working directory is " + at.Cwd, nil
}

// DateSection returns the section that tells the date in UTC, which is the same on all workers. It changes once a day.
func DateSection(now func() time.Time) ContextSection { return dateSection{now} }

type dateSection struct{ now func() time.Time }

func (dateSection) Name() string { return SectionDate }

func (s dateSection) Text(context.Context, Point) (string, error) {
	return s.now().UTC().Format("Today is Monday, 2006-01-02 (UTC)."), nil
}
