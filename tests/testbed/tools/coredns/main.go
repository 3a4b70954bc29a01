// CoreDNS with no more than the names of a cluster take: most of the time to build the whole is its other plugins.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/template"
)

func init() {
	// In the order in which they get a question.
	dnsserver.Directives = []string{"bind", "template", "kubernetes"}
}

func main() {
	coremain.Run()
}
