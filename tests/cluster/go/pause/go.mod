module cluster.test/pause

go 1.25.0
