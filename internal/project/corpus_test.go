package project_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/dsh"
	"github.com/refold-dev/refold/internal/project"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestCorpus projects the recorded sessions of the reference system.
func TestCorpus(t *testing.T) {
	dir := os.Getenv("REFOLD_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "corpus", "dsh")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "session.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Logf("the recorded scenarios are not in %s: set REFOLD_CORPUS to their folder", dir)
		return
	}
	for _, file := range files {
		scenario := filepath.Base(filepath.Dir(file))
		t.Run(scenario, func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			var cfg dsh.Config
			uploads := filepath.Join(filepath.Dir(file), "files-api")
			if info, err := os.Stat(uploads); err == nil && info.IsDir() {
				cfg.Uploads = os.DirFS(uploads)
			}
			session, err := cfg.Translate(f)
			if err != nil {
				t.Fatal(err)
			}
			l := &foldtest.Log{
				Events: session.Events, Payloads: session.Payloads, State: fold.New(session.ID), Objects: new(objects.Set),
			}
			for _, o := range session.Objects {
				if err := l.Objects.Add(o.Ref, o.Data); err != nil {
					t.Fatal(err)
				}
			}
			checkLog(t, l)
			rs := records(t, l, project.Options{})
			if want, ok := corpusCauses[scenario]; ok {
				if diff := cmp.Diff(want, causes(rs)); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

// corpusCauses holds what the notes of the scenarios say about them. Most of the recorded answers report no cache
// figures.
var corpusCauses = map[string][]project.Cause{
	"05-header-change": {
		project.CauseFirstRequest, project.CauseUnreported, project.CauseUnreported, project.CauseUnreported,
		project.CauseModel, project.CauseModel, project.CauseSystem, project.CauseTools, project.CauseUnreported,
		project.CauseTools, project.CauseTools,
	},
	"06-resume":     {project.CauseFirstRequest, project.CauseUnreported, project.CauseResumeDrift, project.CauseResumeDrift},
	"08-compaction": {project.CauseFirstRequest, project.CauseUnreported, project.CauseUnreported, project.CauseCompaction, project.CauseUnreported},
	"17-image":      {project.CauseFirstRequest, project.CauseUnreported, project.CauseUnreported, project.CauseModel, project.CauseResumeDrift},
	"09-prune":      {project.CauseFirstRequest, project.CauseUnreported, project.CausePrune, project.CauseUnreported},
}
