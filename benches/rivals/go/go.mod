module shapes

go 1.25
