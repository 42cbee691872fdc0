namespace Edgegrad.@Name@
{
    /// <summary>Numbers of C by their names.</summary>
    public enum @Enumeration@
    {
@enumerationRows@
    }
}
