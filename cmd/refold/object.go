package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/pkg/objects"
)

func newObject(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use: "object", Short: "Print the objects that events refer to", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newObjectGet(g))
	return cmd
}

func newObjectGet(g *globals) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "get SHA256", Short: "Print the bytes of an object, when they have that SHA-256", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			digest, err := objects.ParseDigest(args[0])
			if err != nil {
				return fmt.Errorf("%q is no object: %w", fmt.Sprintf("%.80s", args[0]), err)
			}
			client, done, err := g.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			data, err := objects.Fetch(cmd.Context(), client.Objects(), digest)
			if err != nil {
				return err
			}
			if file != "" {
				const mode = 0o600
				return os.WriteFile(file, data, mode)
			}
			_, err = io.Copy(cmd.OutOrStdout(), bytes.NewReader(data))
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write instead of standard output")
	return cmd
}
